"""What a call ends with, and the faults that tools answer with.

Used by everything in this package that runs a call. A fault of a tool is an answer for the model, not a failure of the
tool server: `ToolFault` becomes a result with outcome `error`.
"""

from dataclasses import asdict, dataclass, replace
from typing import Literal

from .capture import bounded, safe
from .protocol import encode

LINE_LIMIT = 128 * 1024
"""Bytes of one NDJSON line."""


@dataclass(frozen=True, slots=True)
class Result:
    """The one result of a call. `code` is a short word for an error (NotFound, TimedOut, NoShell, …), else None."""

    outcome: Literal["ok", "error", "cancelled"]
    text: str
    total_bytes: int
    truncated: bool = False
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    duration_ms: int = 0
    killed: int = 0
    code: str | None = None

    def line(self) -> bytes:
        """The result's NDJSON line, within LINE_LIMIT."""
        line = encode({"type": "result", **asdict(self)})
        if len(line) <= LINE_LIMIT:
            return line
        # Only control characters get here: JSON spells each with six bytes. 18,000 of them fit.
        shown = 9_000
        head, tail = self.text[:shown], self.text[-shown:]
        omitted = len(self.text.encode()) - len(head.encode()) - len(tail.encode())
        text = f"{head}\n[… {omitted} more bytes omitted: too many control characters …]\n{tail}"
        return encode({"type": "result", **asdict(replace(self, text=text, truncated=True))})


class ToolFault(Exception):
    """A tool cannot do what it was asked; `message` tells the model what to do instead."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")

    def result(self) -> Result:
        text = safe(self.message)
        return Result("error", text, len(text.encode()), code=self.code)


def done(text: str) -> Result:
    """The result of a tool that succeeded; the middle of a long text is left out."""
    data = text.encode("utf-8", "replace")
    shown, truncated = bounded(data)
    return Result("ok", shown, len(data), truncated)
