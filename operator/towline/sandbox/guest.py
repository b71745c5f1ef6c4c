"""A small client of the tool server, for the conformance suite and for tests.

The gateway has its own (`gateway/sandbox_client.py`), which trusts nothing that comes back; this one is short, and
fails loudly instead. It stands on the standard library.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any

SECONDS = 20.0
"""Bound on every exchange; one that runs a call may take as long as the call may besides."""


class Answer(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, body: Any) -> None:
        self.status, self.body = status, body
        super().__init__(f"HTTP {status}: {body}")


class Guest:
    """One keep-alive connection to the tool server at `unix:PATH` or `http://HOST:PORT`."""

    def __init__(self, endpoint: str, key: str) -> None:
        self._endpoint, self._key = endpoint, key.encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.authorization = ""

    async def __aenter__(self) -> "Guest":
        await self.hello()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def hello(self) -> dict[str, Any]:
        """Say hello and check the proof. Raises ValueError when it is wrong."""
        nonce = secrets.token_hex(16)
        said: dict[str, Any] = await self.ask("POST", "/v1/hello", {"nonce": nonce}, authorized=False)
        if not hmac.compare_digest(said["proof"], self._mac(f"towline-toolserver:{nonce}:{said['instance']}")):
            raise ValueError("the tool server does not hold the key of this sandbox")
        self.authorization = "Towline " + self._mac("towline-gateway:" + said["instance"])
        return said

    async def call(self, call_id: str, tool: str, /, timeout_seconds: float | None = None, **arguments: Any) -> Any:
        """Run a call and return its result."""
        return (await self.lines(call_id, tool, timeout_seconds=timeout_seconds, **arguments))[-1]

    async def lines(
        self, call_id: str, tool: str, /, timeout_seconds: float | None = None, **arguments: Any
    ) -> list[dict[str, Any]]:
        """Run a call and return every line of its answer, the result last."""
        body: dict[str, Any] = {"tool": tool, "arguments": arguments}
        if timeout_seconds is not None:
            body["timeout_seconds"] = timeout_seconds
        seconds = SECONDS + (timeout_seconds or 0)
        lines: list[dict[str, Any]] = await self.ask("PUT", f"/v1/calls/{call_id}", body, seconds=seconds)
        return lines

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        authorized: bool = True,
        headers: Mapping[str, str] = {},
        seconds: float = SECONDS,
    ) -> Any:
        """One exchange: the JSON body, or the list of lines of a streamed one. Raises Answer, OSError, TimeoutError."""
        data = b"" if body is None else json.dumps(body).encode()
        extra = dict(headers)
        if authorized:
            extra["Authorization"] = self.authorization
        head = f"{method} {path} HTTP/1.1\r\nHost: sandbox\r\nContent-Length: {len(data)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in extra.items()) + "\r\n"
        if self._streams is not None and self._streams[0].at_eof():
            self.close()  # an idle connection that has not shown the key yet is closed after five seconds
        async with asyncio.timeout(seconds):
            reader, writer = self._streams or await self._dial()
            try:
                writer.write(head.encode() + data)
                status, answer = await read_answer(reader)
            except BaseException:
                self.close()
                raise
        if status != 200:
            self.close()
            raise Answer(status, answer)
        return answer

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._endpoint.startswith("unix:"):
            self._streams = await asyncio.open_unix_connection(self._endpoint.removeprefix("unix:"))
        else:
            host, _, port = self._endpoint.removeprefix("http://").rpartition(":")
            self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
        return self._streams

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and body of one response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ", 2)[1])
    if "transfer-encoding: chunked" in head:
        data = b""
        while size := int(await reader.readline(), 16):
            data += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return status, [json.loads(line) for line in data.splitlines()]
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return status, json.loads(await reader.readexactly(length))
