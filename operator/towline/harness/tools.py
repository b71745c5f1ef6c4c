"""The gateway as the loop's Tools port: a lean client for MCP 2026-07-28, one POST a call, nothing remembered.

Wire format: modelcontextprotocol.io/specification/2026-07-28, "Streamable HTTP". A call has an id of ours, so asking
again is safe: what breaks on the way is asked again until there is a result, or for ten minutes.
"""

import asyncio
import base64
import itertools
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import aiohttp

from towline import __version__, failpoints
from towline.errors import Fenced, LogClosed, RunCancelled, StopWriting, Unauthenticated
from towline.events.adopted import Adopted, adopted
from towline.events.event import Seen
from towline.harness.models.base import Tool
from towline.harness.models.sse import SseParser
from towline.harness.ports import GatewayRefused, GatewayUnavailable
from towline.harness.transcript import ToolResult, ToolUse
from towline.naming import (
    CALL_ID_META,
    CANCEL_META,
    DISPATCHED_META,
    OUTCOME_META,
    RECORD_META,
    SEEN_META,
    UNPARSABLE_META,
)

log = logging.getLogger(__name__)

PROTOCOL_VERSION = "2026-07-28"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "towline-harness", "version": __version__},
    "io.modelcontextprotocol/clientCapabilities": {},
}
MAX_ANSWER_BYTES = 8 << 20
SILENCE_SECONDS = 60.0
"""The gateway sends a sign of life every 15 s; after so long without one the connection is dead."""
PATIENCE_SECONDS = 600.0
"""From the first failure on. A gateway that held a call for as long before it broke off was there: its end is a first
failure again. One that held it for less may be dying of that very call, time after time."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
TOKEN_ATTEMPTS = 4
"""A token may be refused because it is being rotated at this moment; not four times in a row. An attempt between them
that failed otherwise breaks the row: a long call may see many rotations, each at a bad moment."""

_PLAIN = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class Tail(Protocol):
    """What the store may still lose of the run, and get back from its writer."""

    @property
    def seen(self) -> Seen:
        """Up to where the log is known to be there."""
        ...

    def adopt(self, call: Adopted) -> None:
        """The gateway's events of a call are from now on answered for like the harness' own."""

    async def flush(self) -> None:
        """Put back at once what the store has lost. Raises StopWriting, StoreUnavailable."""


class _Forgotten(Exception):
    """The store has lost the call in a failover, and may have lost what comes before it."""

    def __init__(self, dispatched: str) -> None:
        super().__init__("the store lost the call")
        self.dispatched = dispatched


class _AskAgain(Exception):
    """This attempt gave no result; the next may. `attached`: it had reached the call and waited for it."""

    def __init__(self, cause: str, *, attached: bool = False) -> None:
        super().__init__(cause)
        self.attached = attached


class Gateway:
    """The Tools port. `connect` asks for the tool list once; a run without tools never dials."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token_file: Path, tail: Tail | None = None) -> None:
        """Without a `tail` nobody answers for the log: for measuring."""
        self.offered: tuple[Tool, ...] = ()
        self._session = session
        self._url = url
        self._token_file = token_file
        self._tail = tail
        self._request_ids = itertools.count(1)

    async def connect(self) -> None:
        """Learn what the model may call. Same errors as `call`."""
        answer = await self._until_answered("tools/list", {})
        try:
            self.offered = tuple(
                Tool(tool["name"], tool.get("description", ""), tool["inputSchema"]) for tool in answer["tools"]
            )
        except (KeyError, TypeError, AttributeError) as fault:
            raise GatewayRefused(f"the gateway's list of tools is malformed: {type(fault).__name__}") from None

    async def call(self, use: ToolUse) -> ToolResult:
        """Contract: `ports.Tools.call`."""
        return await self._result_of(use)

    async def cancel(self, use: ToolUse) -> ToolResult:
        """Contract: `ports.Tools.cancel`. The same request with a mark, so it names the same call."""
        return await self._result_of(use, {CANCEL_META: True})

    async def _result_of(self, use: ToolUse, mark: Mapping[str, Any] = MappingProxyType({})) -> ToolResult:
        meta: dict[str, Any] = {CALL_ID_META: use.call_id, **mark}
        if use.arguments is None:
            meta[UNPARSABLE_META] = use.unparsable
        params: dict[str, Any] = {"name": use.name or "_", "arguments": use.arguments or {}, "_meta": meta}
        answer = await self._until_answered("tools/call", params)
        content = answer.get("content") or []
        text = "".join(str(block.get("text", "")) for block in content if block.get("type") == "text")
        is_error = bool(answer.get("isError"))
        told = answer.get("_meta") or {}
        outcome = told.get(OUTCOME_META) or ("error" if is_error else "ok")
        if self._tail is not None and (record := told.get(RECORD_META)) is not None:
            self._tail.adopt(
                adopted(
                    record,
                    call_id=use.call_id,
                    name=params["name"],
                    arguments=params["arguments"],
                    unparsable=meta.get(UNPARSABLE_META),
                    outcome=outcome,
                    text=text,
                )
            )
        return ToolResult(use.call_id, text, is_error, outcome)

    async def _until_answered(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        clock = asyncio.get_running_loop().time
        failing_since, pause, refused = None, FIRST_PAUSE_SECONDS, 0
        while True:
            began = clock()
            try:
                return await self._attempt(method, params)
            except Unauthenticated:
                refused += 1
                if refused == TOKEN_ATTEMPTS:
                    raise
                cause = "the gateway does not accept the token"
            except _Forgotten as lost:
                cause, refused = str(lost), 0
                if self._tail is not None:
                    await self._tail.flush()
                if lost.dispatched:
                    params = {**params, "_meta": {**params["_meta"], DISPATCHED_META: lost.dispatched}}
            except _AskAgain as again:
                cause, refused = str(again), 0
                if again.attached and clock() - began >= PATIENCE_SECONDS:
                    failing_since, pause = None, FIRST_PAUSE_SECONDS
            if failing_since is None:
                failing_since = clock()
            if clock() - failing_since > PATIENCE_SECONDS:
                raise GatewayUnavailable(f"no answer to {method} for {PATIENCE_SECONDS:.0f} s: {cause}")
            log.warning("gateway asked again", extra={"fields": {"method": method, "cause": cause, "pause": pause}})
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _attempt(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request_id = next(self._request_ids)
        meta = {**ENVELOPE, **params.get("_meta", {})}
        if self._tail is not None and method == "tools/call":
            meta[SEEN_META] = " ".join(map(str, self._tail.seen)).rstrip()
        body = {
            "jsonrpc": "2.0",
            "id": request_id,
            "method": method,
            "params": {**params, "_meta": meta},
        }
        attached = False
        try:
            async with self._session.post(
                self._url,
                data=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
                headers=self._headers(method, params.get("name")),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_SECONDS),
            ) as response:
                if response.status == 401:
                    raise Unauthenticated("the gateway does not accept the harness' token")
                attached = response.content_type == "text/event-stream"
                failpoints.hit("harness.call.sent")
                messages = _event_stream(response) if attached else _single(response)
                async for message in messages:
                    if message.get("id") == request_id or "error" in message:
                        return _result(message, response.status)
        except (aiohttp.ClientError, OSError) as fault:  # OSError includes TimeoutError
            raise _AskAgain(f"{type(fault).__name__}: {fault}", attached=attached) from None
        except (ValueError, AttributeError, RecursionError) as fault:
            raise _AskAgain(f"malformed answer: {type(fault).__name__}") from None
        raise _AskAgain("the answer ended before the result came", attached=attached)

    def _headers(self, method: str, name: str | None) -> dict[str, str]:
        """Read anew for each request: the kubelet rotates the token in place."""
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise Unauthenticated(f"the gateway token file cannot be read: {type(fault).__name__}") from None
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            "Mcp-Method": method,
        }
        return headers if name is None else {**headers, "Mcp-Name": header_value(name)}


def header_value(name: str) -> str:
    """A tool name as MCP 2026-07-28 carries it in a header: anything but plain printable ASCII goes as base64."""
    if _PLAIN.fullmatch(name) and not (name.startswith("=?base64?") and name.endswith("?=")):
        return name
    return f"=?base64?{base64.b64encode(name.encode()).decode()}?="


def _result(message: Mapping[str, Any], status: int) -> dict[str, Any]:
    """The result in a JSON-RPC answer, or the error that it means."""
    if "error" not in message:
        if not isinstance(result := message.get("result"), dict):
            raise ValueError("neither result nor error")
        return dict(result)
    error = message["error"]
    reason, text = (error.get("data") or {}).get("reason"), str(error.get("message", ""))[:500]
    if stop := _stop(reason, text):
        raise stop
    if reason == "StoreLost":
        raise _Forgotten(str(error["data"].get("dispatched") or ""))
    # An internal error may be a gateway that is being replaced; the call's id makes another try harmless.
    if (
        status in (408, 425, 429)
        or status >= 500
        or reason in ("StoreUnavailable", "Busy")
        or error.get("code") == -32603
    ):
        raise _AskAgain(text)
    raise GatewayRefused(f"the gateway refused the request: {text} ({reason or error.get('code')})")


def _stop(reason: str | None, text: str) -> StopWriting | None:
    """These errors carry words, not numbers: the message is the gateway's own."""
    stop: StopWriting
    match reason:
        case "Fenced":
            stop = Fenced(0, 0)
        case "LogClosed":
            stop = LogClosed("")
        case "Cancelled":
            stop = RunCancelled("")
        case _:
            return None
    stop.args = (text,)
    return stop


async def _single(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > MAX_ANSWER_BYTES:
            raise GatewayRefused(f"the gateway's answer exceeds {MAX_ANSWER_BYTES} bytes")
    if response.content_type != "application/json":
        if response.status < 500 and response.status not in (200, 408, 425, 429):
            raise GatewayRefused(f"the gateway answered HTTP {response.status}")
        raise _AskAgain(f"HTTP {response.status}, {response.content_type}")
    yield json.loads(raw)


async def _event_stream(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Pings are comments, which the parser drops; notifications are for whoever asked for them, which we did not."""
    parser = SseParser(MAX_ANSWER_BYTES)
    async for chunk in response.content.iter_any():
        for event in parser.feed(chunk):
            yield json.loads(event.data)
