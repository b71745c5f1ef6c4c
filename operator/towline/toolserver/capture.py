"""What is kept of a command's output: the first and the last bytes, an exact count, and a short live prefix.

Called by `execute.py` and the file tools. Memory is bounded whatever is printed. Everything that leaves here is text
that JSON, databases and terminals' string types accept: no lone surrogate, no NUL.
"""

import codecs

TEXT_LIMIT = 40_000
"""Characters of a result's text, the omission line included."""
HEAD_BYTES = 19_900
TAIL_BYTES = 19_900
"""Kept from the start and the end. A byte never decodes to more than one character, so both and the line fit."""
LIVE_LIMIT = 64 * 1024
"""Characters streamed while a command runs; the result tells the rest."""

_MARK = "\ufffd"


def safe(text: str) -> str:
    """`text` with every NUL and lone surrogate replaced by U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", _MARK)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


class Capture:
    """Head and tail of a byte stream. `add` costs the same for each byte, however long the stream grows."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_bytes:
            self._tail[:] = data[len(data) - self._tail_bytes :]
        elif data:
            self._tail += data
            # Trimmed at twice the size, so that a stream of single bytes does not move the tail for each of them.
            if len(self._tail) > 2 * self._tail_bytes:
                del self._tail[: -self._tail_bytes]

    @property
    def truncated(self) -> bool:
        return self.total > self._head_bytes + self._tail_bytes

    def text(self) -> str:
        """Everything, or head, omission line and tail."""
        tail = bytes(self._tail[-self._tail_bytes :])
        if self.truncated:
            return ends(bytes(self._head), tail, self.total)
        return safe((bytes(self._head) + tail).decode("utf-8", "replace"))


def ends(head: bytes, tail: bytes, total: int) -> str:
    """First and last bytes of `total`, as text with a line for what lies between; no character is cut in two."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(head)
    cut = len(decoder.getstate()[0])
    lead = 0
    while lead < min(3, len(tail)) and tail[lead] & 0xC0 == 0x80:
        lead += 1
    omitted = total - (len(head) - cut) - (len(tail) - lead)
    return f"{safe(text)}\n[… {omitted} bytes omitted …]\n{safe(tail[lead:].decode('utf-8', 'replace'))}"


def bounded(data: bytes) -> tuple[str, bool]:
    """`data` as a result's text, and whether its middle was left out."""
    capture = Capture()
    capture.add(data)
    return capture.text(), capture.truncated


class Live:
    """The first LIVE_LIMIT characters of a stream, as they come."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._full = False
        self.text = ""

    def add(self, data: bytes) -> bool:
        """Whether `text` grew."""
        if self._full:
            return False
        room = LIVE_LIMIT - len(self.text)
        # Four bytes make at least one character: what lies beyond can never be shown, so it is not decoded either.
        more = safe(self._decoder.decode(data[: 4 * room + 4]))[:room]
        self.text += more
        self._full = len(self.text) >= LIVE_LIMIT
        return bool(more)
