"""HTTP/1.1 as far as the tool server speaks it: a strict head parser, response bytes, and one bounded connection.

Called by `server.py`. Everything unusual is refused, not repaired: no chunked request bodies, no repeated headers, no
absolute targets. Parsing is pure; `Connection` does the I/O, holds at most one request, and knows no route.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

HEAD_LIMIT = 16 * 1024
"""Bytes of a request head. Ours have about 300."""
BODY_LIMIT = 4 * 1024 * 1024
"""Bytes of a request body; the gateway's own limit for a call."""
STRANGER_LIMIT = 64 * 1024
"""Bytes that are taken at once from a peer that has not shown the key."""
TARGET_LIMIT = 4096
HEADER_COUNT_LIMIT = 64

STRANGER_IDLE_SECONDS = 5.0
"""How long a connection that never showed the key may sit idle: commands in the sandbox can dial us as well."""
IDLE_SECONDS = 300.0
"""How long the gateway may keep a connection without using it."""
REQUEST_SECONDS = 20.0
"""From a request's first byte to its last: ends a sender that drips."""
LINGER_SECONDS = 1.0
DRAIN_SECONDS = 30.0
"""How long a peer may refuse to read what we send."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    414: "URI Too Long",
    417: "Expectation Failed",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/(\d\.\d)")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?[ \t]*")
_LENGTH = re.compile(r"[0-9]{1,10}")


class Refused(Exception):
    """A request that gets an error response. `close` says that the connection cannot be used any further."""

    def __init__(self, status: int, code: str, message: str, *, close: bool = False) -> None:
        self.status, self.code, self.message, self.close = status, code, message, close
        super().__init__(f"{status} {code}: {message}")


class Gone(Exception):
    """The peer closed, or was too slow to be waited for: end the connection without a word."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. Header names are lower case, each occurs once."""

    method: str
    path: str
    headers: dict[str, str]
    length: int


def parse_head(raw: bytes) -> Head:
    """The head in `raw`, which ends before the blank line. Raises Refused (with `close`) for anything unusual."""
    line, *rest = raw.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        raise _broken("the request line is not METHOD /path HTTP/1.1")
    method, target, version = request.groups()
    if version != b"1.1":
        raise Refused(505, "BadVersion", f"HTTP/{version.decode()} is not spoken here, expected HTTP/1.1", close=True)
    if len(target) > TARGET_LIMIT:
        raise Refused(414, "PathTooLong", f"the path has {len(target)} bytes, at most {TARGET_LIMIT}", close=True)
    if len(rest) > HEADER_COUNT_LIMIT:
        raise Refused(431, "TooManyHeaders", f"{len(rest)} headers, at most {HEADER_COUNT_LIMIT}", close=True)
    headers: dict[str, str] = {}
    for field in rest:
        header = _HEADER.fullmatch(field)
        if header is None:
            raise _broken("a header line is malformed")
        name = header[1].decode().lower()
        if name in headers:
            raise _broken(f"header {name} occurs twice")
        headers[name] = (header[2] or b"").decode()
    if "host" not in headers:
        raise _broken("header host is missing")
    if "expect" in headers:
        raise Refused(417, "ExpectationFailed", "Expect is not supported: send the body at once", close=True)
    return Head(method.decode(), target.decode(), headers, _body_length(headers))


def _body_length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        if "content-length" in headers:
            raise _broken("content-length and transfer-encoding exclude each other")
        raise Refused(501, "NotImplemented", "request bodies need a content-length", close=True)
    text = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(text):
        raise _broken("content-length is not a whole number")
    if int(text) > BODY_LIMIT:
        raise Refused(413, "BodyTooLarge", f"the body has {text} bytes, at most {BODY_LIMIT}", close=True)
    return int(text)


def _broken(message: str) -> Refused:
    return Refused(400, "BadRequest", message, close=True)


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Strict: UTF-8, no repeated key, no NaN. Raises Refused 400."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as fault:
        raise Refused(400, "BadJson", f"the body is not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise Refused(400, "BadJson", "the body is not a JSON object")
    return cast(dict[str, Any], value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has the same key twice")
    return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON without a line feed."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def response(status: int, value: Any, *, close: bool = False) -> bytes:
    """A whole response with a JSON body."""
    body = encode(value)
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{'Connection: close' + chr(13) + chr(10) if close else ''}\r\n"
    )
    return head.encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(line: bytes) -> bytes:
    """One NDJSON line (given without its line feed) as one HTTP chunk."""
    return b"%x\r\n%b\n\r\n" % (len(line) + 1, line)


class Connection(asyncio.Protocol):
    """One peer. `serve` runs as a task from connect to close, and is cancelled when the peer goes.

    Cancelling is harmless by design: calls run detached from the connection that started them.
    """

    def __init__(
        self,
        serve: Callable[["Connection"], Coroutine[Any, Any, None]],
        opened: Callable[["Connection"], None],
        closed: Callable[["Connection"], None],
    ) -> None:
        self._serve, self._opened, self._closed = serve, opened, closed
        self._buffer = bytearray()
        self._arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self.trusted = False
        """The peer has shown the key on this connection; a stranger's is the first to be closed when all are taken."""

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opened(self)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        most = BODY_LIMIT + HEAD_LIMIT if self.trusted else STRANGER_LIMIT
        if len(self._buffer) > most and self._transport is not None:
            self._transport.pause_reading()
            self._reading = False
        _wake(self._arrived)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._closed(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._drained)
        self._drained = None

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except (Gone, TimeoutError):
            pass
        finally:
            self.close()

    # -- what the server calls

    async def head(self) -> Head:
        """The next request's head. Waits for it within the idle limit; its body, if any, must be taken by `body`."""
        if not self._buffer:
            async with asyncio.timeout(IDLE_SECONDS if self.trusted else STRANGER_IDLE_SECONDS):
                await self._receive()
        async with asyncio.timeout(REQUEST_SECONDS):
            while (end := self._buffer.find(b"\r\n\r\n", 0, HEAD_LIMIT)) < 0:
                if len(self._buffer) >= HEAD_LIMIT:
                    raise Refused(431, "HeadTooLarge", f"the request head exceeds {HEAD_LIMIT} bytes", close=True)
                await self._receive()
        raw = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        return parse_head(raw)

    async def body(self, head: Head) -> bytes:
        """The body that belongs to `head`."""
        async with asyncio.timeout(REQUEST_SECONDS):
            while len(self._buffer) < head.length:
                await self._receive()
        raw = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        return raw

    async def send(self, data: bytes) -> None:
        """Write, and wait while the peer is behind. Raises Gone when it stays behind or has left."""
        if self._transport is None or self._transport.is_closing():
            raise Gone
        self._transport.write(data)
        if self._drained is not None:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._drained

    async def linger(self) -> None:
        """End our side, and throw away what still comes, for a moment: to close could destroy our answer on its way."""
        if self._transport is not None:
            self._transport.write_eof()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while True:
                    self._buffer.clear()
                    await self._receive()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _receive(self) -> None:
        if self._transport is None:
            raise Gone
        if not self._reading:
            self._transport.resume_reading()
            self._reading = True
        self._arrived = asyncio.get_running_loop().create_future()
        try:
            await self._arrived
        finally:
            self._arrived = None


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
