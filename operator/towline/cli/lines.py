"""The viewers for everything that is no terminal: one line an event, for a log file, or as JSON, for a program.

Called by `run` and `tail`. Neither shows deltas: the events hold everything.
"""

from collections.abc import Mapping
from typing import Any, BinaryIO, TextIO

from towline.cli.sanitize import one_line
from towline.cli.text import event_line
from towline.events.event import Event


class PlainLines:
    """One line an event, no escape codes."""

    wants_deltas = False

    def __init__(self, out: TextIO, ask: str = "") -> None:
        self._out, self._ask = out, ask

    def event(self, event: Event) -> None:
        self._out.write(event_line(event) + "\n")
        self._out.flush()
        if event.type == "turn.waiting":
            self.note(f"waiting for a prompt: {self._ask}")

    def delta(self, delta: Mapping[str, Any]) -> None:
        """Never called: it wants none."""

    def note(self, text: str) -> None:
        self._out.write(f"{'':5}  {one_line(text, 200)}\n")
        self._out.flush()

    def typed(self, text: str | None) -> None:
        """The event tells it."""


class JsonLines:
    """The events as the log holds them, byte for byte, one a line; nothing else goes to stdout."""

    wants_deltas = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def event(self, event: Event) -> None:
        self._out.write(event.line() + b"\n")
        self._out.flush()

    def delta(self, delta: Mapping[str, Any]) -> None:
        """Never called: it wants none."""

    def note(self, text: str) -> None:
        """A program gets events alone."""

    def typed(self, text: str | None) -> None:
        """The event tells it."""
