"""Server-sent events, incrementally and bounded: bytes in, events out, whatever the chunk boundaries.

Used by the model adapters and by the gateway client. Follows the HTML standard's event stream interpretation, minus
`id` and `retry`, which nothing here needs.
"""

from dataclasses import dataclass

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseTooLarge(ValueError):
    """One event exceeds the limit."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """`event` is `message` unless the stream names it."""

    event: str
    data: str


class SseParser:
    """Feed it chunks; an event that the end of the stream cuts off is never given out, as the standard demands."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._unfinished_line: list[bytes] = []
        self._size = 0
        self._after_carriage_return = False
        self._first_line = True
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Events that `chunk` completes. Raises SseTooLarge, or UnicodeDecodeError for text that is not UTF-8."""
        events: list[ServerSentEvent] = []
        if not chunk:
            return events
        if self._after_carriage_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_carriage_return = chunk.endswith(b"\r")
        # bytes.splitlines splits at CR, LF and CRLF only, which is exactly the standard's rule.
        for piece in chunk.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self._max_event_bytes:
                raise SseTooLarge(f"one event exceeds {self._max_event_bytes} bytes")
            self._unfinished_line.append(piece)
            if piece.endswith((b"\n", b"\r")):
                line = b"".join(self._unfinished_line).rstrip(b"\r\n")
                self._unfinished_line.clear()
                if event := self._take(line):
                    events.append(event)
        return events

    def _take(self, line: bytes) -> ServerSentEvent | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            event = ServerSentEvent(self._event or "message", "\n".join(self._data)) if self._data else None
            self._event, self._size, self._data = "", 0, []
            return event
        field, _, value = line.decode().partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif not self._data:
            self._size = 0  # comments keep a quiet stream alive for hours
        return None
