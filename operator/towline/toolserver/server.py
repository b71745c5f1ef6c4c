"""The routes of the tool server: hello, seed, calls, health. The protocol is `docs/tool-server.md`.

Called by `__main__.py`. A request's key is checked before its body is read; a call is handed to the registry and its
progress is told until the result. It decides nothing about what a call may do: policy is the gateway's.
"""

import asyncio
import os
import re
import resource
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from .auth import Keyholder
from .beneath import Workspace
from .calls import Call, Calls, fingerprint
from .execute import shell
from .files import write_file
from .protocol import (
    STREAM_END,
    STREAM_HEAD,
    Connection,
    Gone,
    Head,
    Refused,
    chunk,
    encode,
    parse_body,
    response,
)
from .result import Result, ToolFault
from .tools import Tools

PROTOCOL = 1
CONNECTION_LIMIT = 64
BACKLOG = 128
KEYLESS_LIMIT = 1024
"""Bytes of a body that comes without the key."""
_KEYLESS = (("GET", "/v1/health"), ("POST", "/v1/hello"))
OUTPUT_SLICE = 8 * 1024
"""Characters of one output line; even escaped it stays far below the limit of a line."""
SEED_FILES_LIMIT = 256

_CALL = re.compile(r"/v1/calls/([A-Za-z0-9_-]{1,40})")
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


class ToolServer:
    """One sandbox's tool server. `marker` is the file that says that this volume has been seeded."""

    def __init__(self, keyholder: Keyholder, workspace: Workspace, tools: Tools, marker: str) -> None:
        self._keyholder, self._workspace, self._tools, self._marker = keyholder, workspace, tools, marker
        self._fresh = not os.path.lexists(marker)
        self._calls = Calls()
        self._connections: dict[Connection, None] = {}
        self.network_proved = False
        """Set once the network is known to be closed: until then the gateway is told to come back."""

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Serve on a listening socket; returns at once."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)

        def connection() -> Connection:
            return Connection(self._serve, self._opened, self._closed)

        if listener.family == socket.AF_UNIX:
            return await loop.create_unix_server(connection, sock=listener, backlog=BACKLOG)
        return await loop.create_server(connection, sock=listener, backlog=BACKLOG)

    def _opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        if len(self._connections) > CONNECTION_LIMIT:
            # A command may open as many as it likes; it must not lock the gateway out.
            strangers = (each for each in self._connections if not each.trusted)
            surplus = next(strangers, connection)
            del self._connections[surplus]
            surplus.abort()

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    async def _serve(self, connection: Connection) -> None:
        while True:
            keep = False
            try:
                head = await connection.head()
                keep = head.headers.get("connection", "").lower() != "close"
                await self._respond(connection, head)
            except Refused as refused:
                keep = keep and not refused.close
                body = {"error": refused.code, "message": refused.message}
                await connection.send(response(refused.status, body, close=not keep))
            except (Gone, TimeoutError):
                raise
            except Exception:  # the edge of a request: the peer gets an answer, the log the cause
                traceback.print_exc(file=sys.stderr)
                keep = False
                body = {"error": "Internal", "message": "the tool server failed"}
                await connection.send(response(500, body, close=True))
            if not keep:
                await connection.linger()
                return

    async def _respond(self, connection: Connection, head: Head) -> None:
        route = (head.method, head.path)
        if route in _KEYLESS and head.length > KEYLESS_LIMIT:
            message = f"without the key a body has at most {KEYLESS_LIMIT} bytes"
            raise Refused(413, "BodyTooLarge", message, close=True)
        if route == ("GET", "/v1/health"):
            await connection.body(head)
            await connection.send(response(200, self._health()))
            return
        if not self.network_proved:
            raise Refused(503, "NetworkNotProved", "it is not yet proved that the network is closed", close=True)
        if route == ("POST", "/v1/hello"):
            await connection.send(response(200, self._hello(parse_body(await connection.body(head)))))
            return
        if not self._keyholder.admits(head.headers.get("authorization", "")):
            # Closed, as the body has not been read, and never is for a stranger.
            raise Refused(401, "Unauthorized", "this request does not show the key of this sandbox", close=True)
        connection.trusted = True
        body = await connection.body(head)
        self._calls.acknowledge(_acknowledged(head))
        call = _CALL.fullmatch(head.path)
        if route == ("POST", "/v1/seed"):
            self._seed(parse_body(body))
            await connection.send(response(200, {"seeded": True}))
        elif call and head.method == "PUT":
            await self._tell(connection, self._call(call[1], parse_body(body)))
        elif call and head.method == "DELETE":
            await connection.send(response(200, {"cancelled": self._calls.cancel(call[1])}))
        elif call or head.path in ("/v1/health", "/v1/hello", "/v1/seed"):
            raise Refused(405, "MethodNotAllowed", f"{head.method} is not allowed on {head.path}")
        else:
            raise Refused(404, "NotFound", f"there is no {head.path[:200]}")

    def _health(self) -> Mapping[str, Any]:
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * resource.getpagesize()
        return {"status": "ok", "rss_bytes": resident, "running": self._calls.running}

    def _hello(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        nonce = body.get("nonce")
        try:
            proof = self._keyholder.proof(nonce if isinstance(nonce, str) else "")
        except ValueError as fault:
            raise Refused(400, "BadNonce", str(fault)) from None
        return {
            "protocol": PROTOCOL,
            "instance": self._keyholder.instance,
            "proof": proof,
            "workspace": self._workspace.path,
            "shell": shell(),
            "seeded": os.path.lexists(self._marker),
            "fresh": self._fresh,
        }

    def _seed(self, body: Mapping[str, Any]) -> None:
        """Write the files a run starts with, once per volume. A failure leaves it unseeded, to be tried again."""
        files = body.get("files")
        if not isinstance(files, list) or len(files) > SEED_FILES_LIMIT:
            raise Refused(400, "BadFiles", f"files: expected a list of at most {SEED_FILES_LIMIT}")
        if os.path.lexists(self._marker):
            return
        for file in files:
            path, content, mode = (file.get(key) if isinstance(file, dict) else None for key in _SEED_KEYS)
            if not isinstance(path, str) or not isinstance(content, str):
                raise Refused(400, "BadFiles", "files: each needs a path and a content, both text")
            if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o777):
                raise Refused(400, "BadFiles", f"files: the mode of {path[:200]} is not from 0 to 511 (0o777)")
            try:
                write_file(self._workspace, path, content, mode)
            except ToolFault as fault:
                raise Refused(422, fault.code, fault.message) from None
        with open(self._marker, "xb"):
            pass

    def _call(self, call_id: str, body: Mapping[str, Any]) -> Call:
        tool, arguments, seconds = body.get("tool"), body.get("arguments"), body.get("timeout_seconds")
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise Refused(400, "BadCall", "a call needs a tool (text) and arguments (object)")
        if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds <= 86_400):
            raise Refused(400, "BadCall", "timeout_seconds: expected a number above 0, at most 86400")

        async def work(call: Call) -> Result:
            return await self._tools.run(call, tool, arguments, seconds)

        return self._calls.begin(call_id, fingerprint(tool, arguments), work, streams=tool == "exec")

    async def _tell(self, connection: Connection, call: Call) -> None:
        """Stream a call's live output and its result. Many may listen; one that comes late gets all of it."""
        told = 0
        begun = False
        while call.line is None:
            text = call.live_text[told : told + OUTPUT_SLICE]
            if text:
                line = chunk(encode({"type": "output", "offset": told, "text": text}))
                await connection.send(line if begun else STREAM_HEAD + line)
                begun, told = True, told + len(text)
            else:
                await call.changed()
        await connection.send((b"" if begun else STREAM_HEAD) + chunk(call.line) + STREAM_END)


_SEED_KEYS = ("path", "content", "mode")


def _acknowledged(head: Head) -> list[str]:
    call_ids = [call_id.strip() for call_id in head.headers.get("towline-ack", "").split(",")]
    return [call_id for call_id in call_ids if _CALL_ID.fullmatch(call_id)]
