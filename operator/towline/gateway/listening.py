"""The listening socket, and a connection that cannot be held open by saying nothing.

uvicorn bounds idle connections between requests, but neither the time a first request's head takes nor its size;
`BoundedProtocol` does.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from towline.errors import Invalid

HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 64 * 1024
BACKLOG = 1024


def listening_socket(listen: str) -> socket.socket:
    """`fd:N`: a socket that the parent process opened and bound; `tcp:HOST:PORT`: our own."""
    kind, _, rest = listen.partition(":")
    if kind == "fd" and rest.isdigit():
        inherited = socket.socket(fileno=int(rest))
        inherited.setblocking(False)
        return inherited
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not port.isdigit():
        raise Invalid(f"TOWLINE_LISTEN={listen!r}: expected tcp:HOST:PORT or fd:N")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    own.setblocking(False)
    return own


class BoundedProtocol(HttpToolsProtocol):
    """One connection; closed when the head of a request is late or large."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # always a stream's transport
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        # Only a head that is still incomplete counts: what came after its end is body, bounded elsewhere.
        if self._head_timer is not None and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> Any:
        self._head_arrived()
        return super().on_headers_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
