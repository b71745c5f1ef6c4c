"""Lines typed at the terminal of `towline run`, as prompts for its run. Nothing else reads stdin while a run is shown.

Started by `run` for an interactive run at a terminal. The terminal's own line editing is used; what is typed is handed
over line by line, and what was half typed when the run ends is thrown away, or else it would be the shell's to execute.
"""

import asyncio
import os
import sys
import termios
from collections.abc import Callable

from towline.local.watch import Viewer

ENDED = "no more prompts from this terminal; Ctrl-C ends the run"
LOOK_AGAIN_SECONDS = 1.0  # whether we are in the foreground again
LINE_BYTES = 65_536


def at_a_terminal() -> bool:
    """Whether a person sees what we write and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


class Typed:
    """`take` is given each line that has words, from now until `close`."""

    def __init__(self, viewer: Viewer, take: Callable[[str], None], descriptor: int = 0) -> None:
        self._viewer, self._take, self._descriptor = viewer, take, descriptor
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._again is not None:
            self._again.cancel()
        if self._in_foreground():
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # the terminal is gone
            return False

    def _read(self) -> None:
        if not self._in_foreground():
            # Reading now would stop this process, and with it the run (SIGTTIN): the shell has the terminal.
            self._loop.remove_reader(self._descriptor)
            self._again = self._loop.call_later(LOOK_AGAIN_SECONDS, self._loop.add_reader, self._descriptor, self._read)
            return
        try:
            raw = os.read(self._descriptor, LINE_BYTES)
        except OSError:
            raw = b""
        if not raw:
            self._loop.remove_reader(self._descriptor)
            self._viewer.typed(None)
            self._viewer.note(ENDED)
            return
        text = raw.decode("utf-8", "replace").strip()
        self._viewer.typed(text)
        if text:
            self._take(text)
