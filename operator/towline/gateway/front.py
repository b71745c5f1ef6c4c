"""The gateway's HTTP surface: who may ask, how much, and which face answers.

Raw ASGI, since every tool call passes here. It authenticates each request, bounds and strictly parses its body once for
both faces, holds routing headers against the body, and then hands over: a `tools/call` of the present generation to the
fast path, everything else to the SDK. Health answers without a token.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.shared.inbound import NAME_BEARING_METHODS, decode_header_value
from mcp_types import HEADER_MISMATCH
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from towline import failpoints
from towline.errors import StoreUnavailable, Unauthenticated
from towline.gateway import strict_json
from towline.gateway.fast_path import FastPath, Message, Receive, Send, send_json, send_refusal
from towline.gateway.identity import Identity, IdentityUnavailable, Principal, bearer
from towline.gateway.limits import BODY_BYTES, BODY_SECONDS
from towline.gateway.mcp_server import PRINCIPAL
from towline.gateway.refusals import INVALID_REQUEST, PARSE_ERROR, Refusal

log = logging.getLogger(__name__)

Scope = dict[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Answered(Exception):
    """The request is refused on the HTTP level."""

    def __init__(self, status: int, error: str, *headers: tuple[bytes, bytes]) -> None:
        self.status, self.error, self.headers = status, error, headers
        super().__init__(error)


class Front:
    """The ASGI application. `ready` raises StoreUnavailable while calls cannot be served."""

    def __init__(
        self,
        identity: Identity,
        fast_path: FastPath,
        sdk: App,
        *,
        ready: Callable[[], Awaitable[None]],
        allowed_hosts: list[str],
    ) -> None:
        self._identity, self._fast_path, self._sdk, self._ready = identity, fast_path, sdk, ready
        self._hosts = frozenset(host.removesuffix(":*").encode() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        try:
            match scope["path"]:
                case "/mcp":
                    await self._mcp(scope, receive, send)
                case "/healthz":
                    await send_json(send, 200, {"status": "ok"})
                case "/readyz":
                    await self._answer_ready(send)
                case _:
                    raise _Answered(404, "not found")
        except _Answered as answered:
            error = {"code": INVALID_REQUEST, "message": answered.error}
            await send_json(send, answered.status, {"jsonrpc": "2.0", "id": None, "error": error}, answered.headers)

    async def _mcp(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope["headers"])
        self._check_peer(headers)
        if scope["method"] != "POST":
            raise _Answered(405, "only POST is served", (b"allow", b"POST"))
        principal = await self._principal(headers)
        failpoints.hit("gateway.authenticated")
        _check_media(headers)
        raw = await _body(headers, receive)
        try:
            body = strict_json.loads(raw)
        except strict_json.Malformed as fault:
            await send_refusal(send, Refusal(PARSE_ERROR, f"the body is not one JSON-RPC message: {fault}", status=400))
            return
        if (mismatch := _mismatch(headers, body)) is not None:
            await send_refusal(send, Refusal(HEADER_MISMATCH, mismatch, status=400), body.get("id"))
            return
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        if body.get("method") == "tools/call" and version in MODERN_PROTOCOL_VERSIONS:
            await self._fast_path(principal, body, scope["headers"], receive, send)
            return
        scope[PRINCIPAL] = principal
        # The token ends here; and the SDK parses what we parsed, so that there is no second reading of the body.
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name not in (b"authorization", b"content-length", b"transfer-encoding")
        ]
        await self._sdk(scope, _replay(json.dumps(body).encode(), receive), send)

    def _check_peer(self, headers: dict[bytes, bytes]) -> None:
        """Against pages in a browser and DNS rebinding: our own host name, and never an Origin."""
        host = headers.get(b"host", b"")
        name = host.rpartition(b":")[0] if b":" in host.rpartition(b"]")[2] else host
        if name not in self._hosts:
            raise _Answered(421, "this host name is not served here")
        if b"origin" in headers:
            raise _Answered(403, "browsers are not served")

    async def _principal(self, headers: dict[bytes, bytes]) -> Principal:
        try:
            return await self._identity.verify(bearer(headers.get(b"authorization", b"").decode("latin-1")))
        except Unauthenticated as fault:
            log.info("caller refused", extra={"fields": {"cause": str(fault)}})
            raise _Answered(401, "unauthenticated", (b"www-authenticate", b"Bearer")) from None
        except (IdentityUnavailable, StoreUnavailable) as fault:
            log.warning("caller not known for now", extra={"fields": {"cause": str(fault)}})
            raise _Answered(503, "nobody can say whose token this is", (b"retry-after", b"1")) from None

    async def _answer_ready(self, send: Send) -> None:
        try:
            await self._ready()
        except StoreUnavailable as fault:
            raise _Answered(503, str(fault)) from None
        await send_json(send, 200, {"status": "ready"})


def _headers(lines: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Names to values. Twice the same name means two readers may disagree; we need none of those headers."""
    headers = dict(lines)
    if len(headers) != len(lines):
        single = (b"host", b"authorization", b"content-length", b"content-type", b"origin")
        names = [name for name, _ in lines]
        for name in single:
            if names.count(name) > 1:
                raise _Answered(400, f"the header {name.decode()} appears more than once")
    return headers


def _check_media(headers: dict[bytes, bytes]) -> None:
    if not headers.get(b"content-type", b"").lower().startswith(b"application/json"):
        raise _Answered(415, "expected Content-Type: application/json")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _Answered(415, "a compressed body is not served")
    accepted = {kind.partition(b";")[0].strip().lower() for kind in headers.get(b"accept", b"").split(b",")}
    json_too = accepted & {b"*/*", b"application/*", b"application/json"}
    stream_too = accepted & {b"*/*", b"text/*", b"text/event-stream"}
    if not json_too or not stream_too:
        raise _Answered(406, "expected Accept: application/json, text/event-stream")


async def _body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """All of the body; refused at once when it says that it is too large, and as soon as it is."""
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > BODY_BYTES:
        raise _Answered(413, f"the body is larger than {BODY_BYTES} bytes", (b"connection", b"close"))
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Answered(400, "the body ended early")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
                size += len(parts[-1])
                if size > BODY_BYTES:
                    raise _Answered(413, f"the body is larger than {BODY_BYTES} bytes", (b"connection", b"close"))
    except TimeoutError:
        raise _Answered(
            408, f"the body did not arrive within {BODY_SECONDS:.0f} s", (b"connection", b"close")
        ) from None
    return b"".join(parts)


def _mismatch(headers: dict[bytes, bytes], body: dict[str, Any]) -> str | None:
    """We decide on the body; but a proxy may have decided on the headers, so they must say the same."""
    method = headers.get(b"mcp-method")
    if method is not None and method.decode("latin-1") != body.get("method"):
        return "mcp-method header does not match the request body's method"
    name, key = headers.get(b"mcp-name"), NAME_BEARING_METHODS.get(str(body.get("method")))
    if name is not None and key is not None:
        params = body.get("params")
        named = params.get(key) if isinstance(params, dict) else None
        said = decode_header_value(name.decode("latin-1"))
        if said is None or said != named:
            return f"mcp-name header does not match the request body's {key!r} parameter"
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that tells the body once and then what the connection says."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
