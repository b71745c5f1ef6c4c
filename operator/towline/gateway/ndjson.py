"""Lines from a peer that may send anything, forever.

`sandbox_client.py` feeds a tool server's answer through it. It bounds one line and the whole before anything is parsed;
the caller bounds the time. Pure.
"""

MAX_LINE_BYTES = 512 * 1024
"""A result of 40,000 characters, each the longest JSON escape, fits."""

MAX_TOTAL_BYTES = 2 * 1024 * 1024
"""64 KiB of output, escaped, and one result, with room to spare."""


class TooMuch(Exception):
    """The peer sent more than it may."""


class Lines:
    """Cuts chunks into lines; what follows the last newline waits for the next chunk."""

    def __init__(self, line_bytes: int = MAX_LINE_BYTES, total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._line_bytes, self._total_bytes = line_bytes, total_bytes
        self._buffer = bytearray()
        self._total = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their newlines. Raises TooMuch."""
        self._total += len(chunk)
        if self._total > self._total_bytes:
            raise TooMuch(f"more than {self._total_bytes} bytes in one answer")
        # Only the new bytes are searched: one-byte chunks would otherwise make this quadratic.
        newline = chunk.rfind(b"\n")
        if newline < 0:
            self._buffer += chunk
            lines = []
        else:
            lines = (bytes(self._buffer) + chunk[:newline]).split(b"\n")
            self._buffer = bytearray(chunk[newline + 1 :])
        if len(self._buffer) > self._line_bytes or any(len(line) > self._line_bytes for line in lines):
            raise TooMuch(f"more than {self._line_bytes} bytes in one line")
        return lines
