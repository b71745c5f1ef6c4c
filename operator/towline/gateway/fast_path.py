"""The hot request, a `tools/call` of MCP 2026-07-28, answered without the SDK: the same wire, a third of the work.

`front.py` sends it what is such a call by its body; the SDK serves everything else. The rules are the SDK's own
(`classify_inbound_request`); a test holds both faces' answers against each other. Figures: decision 0005.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types import HEADER_MISMATCH, SERVER_INFO_META_KEY

from towline import failpoints
from towline.gateway.calls import Calls
from towline.gateway.exchange import read_request
from towline.gateway.identity import Principal
from towline.gateway.mcp_server import SERVER_INFO
from towline.gateway.refusals import INTERNAL_ERROR, INVALID_REQUEST, Refusal, refusal

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PING_SECONDS = 15.0
"""A call silent for so long gets an event stream and a comment line, again and again, so that no proxy closes it."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class FastPath:
    """Answers one parsed request at a time; holds nothing between them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def __call__(
        self,
        principal: Principal,
        body: dict[str, Any],
        headers: list[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer the call; when the caller goes away, stop waiting and leave the call to itself."""
        request_id = body.get("id")
        rejected = _rejection(body, headers)
        if rejected is not None:
            await send_refusal(send, rejected, _id(request_id))
            return
        answering = asyncio.ensure_future(self._answer(principal, body))
        try:
            done, _ = await asyncio.wait([answering], timeout=PING_SECONDS)
            if done:
                answer = answering.result()
                if isinstance(answer, Refusal):
                    await send_refusal(send, answer, request_id)
                else:
                    await send_json(send, 200, {"jsonrpc": "2.0", "id": request_id, "result": answer})
            else:
                await self._stream(answering, request_id, receive, send)
        finally:
            answering.cancel()

    async def _answer(self, principal: Principal, body: dict[str, Any]) -> dict[str, Any] | Refusal:
        try:
            result = (await self._calls.handle(principal, read_request(body["params"]))).to_mcp()
        except Exception as fault:
            known = refusal(fault)
            if known is None:
                log.exception("call failed")
                known = Refusal(INTERNAL_ERROR, "internal error")
            return known
        result["_meta"][SERVER_INFO_META_KEY] = SERVER_INFO
        failpoints.hit("gateway.answer.before")
        return result

    async def _stream(
        self, answering: "asyncio.Future[dict[str, Any] | Refusal]", request_id: Any, receive: Receive, send: Send
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        leaving = asyncio.ensure_future(_left(receive))
        try:
            while not answering.done() and not leaving.done():
                await send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})
                ended: list[asyncio.Future[Any]] = [answering, leaving]
                await asyncio.wait(ended, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answer = answering.result()
                said = {"error": answer.error()} if isinstance(answer, Refusal) else {"result": answer}
                event = _encode({"jsonrpc": "2.0", "id": request_id, **said})
                frame = f"event: message\r\ndata: {event}\r\n\r\n".encode()
                await send({"type": "http.response.body", "body": frame, "more_body": False})
        finally:
            leaving.cancel()


async def send_refusal(send: Send, refused: Refusal, request_id: Any = None) -> None:
    """A JSON-RPC error with its HTTP status."""
    later = ((b"retry-after", b"%d" % refused.retry_after),) if refused.retry_after is not None else ()
    await send_json(send, refused.status, {"jsonrpc": "2.0", "id": request_id, "error": refused.error()}, later)


async def send_json(send: Send, status: int, message: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """One JSON answer."""
    payload = _encode(message).encode("utf-8", "replace")
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": payload, "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _rejection(body: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> Refusal | None:
    """What is wrong with the request around the call, by the rules of MCP 2026-07-28."""
    if body.get("jsonrpc") != "2.0" or _id(body.get("id")) is None:
        return Refusal(INVALID_REQUEST, "expected a JSON-RPC 2.0 request with an id", status=400)
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    if (twice := find_duplicated_routing_header(lines)) is not None:
        return Refusal(HEADER_MISMATCH, f"{twice} header appears more than once", status=400)
    route = classify_inbound_request(body, headers=dict(lines))
    if isinstance(route, InboundLadderRejection):
        status = ERROR_CODE_HTTP_STATUS.get(route.code, 200)
        return Refusal(route.code, route.message, route.data, status)
    return None


def _id(value: Any) -> str | int | None:
    return value if isinstance(value, str) or type(value) is int else None
