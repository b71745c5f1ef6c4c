"""Chooses how a run is shown: a terminal's view, plain lines, or JSON lines. Called by `run` and `tail`."""

import io
import sys

from towline.cli.lines import JsonLines, PlainLines
from towline.cli.render import Terminal
from towline.local.watch import Viewer


def viewer(*, json: bool, verbose: bool, no_color: bool, ask: str, typing: bool = False) -> Viewer:
    """The viewer for stdout as it is now. `ask` is the command that prompts the run; `typing`: one may also type here.

    It has a stream of its own: one that a reader blocks for ever must not be the one that the interpreter flushes at
    its end.
    """
    own = open(sys.stdout.fileno(), "wb", closefd=False)  # noqa: SIM115 - open as long as the process
    if json:
        return JsonLines(own)
    text = io.TextIOWrapper(own, encoding=sys.stdout.encoding, errors="replace")
    if not sys.stdout.isatty():
        return PlainLines(text, ask)
    return Terminal(text, color=not no_color, verbose=verbose, ask=ask, typing=typing)
