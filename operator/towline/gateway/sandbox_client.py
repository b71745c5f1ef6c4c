"""The hop to one sandbox: our small protocol over keep-alive HTTP, written for a peer that may be hostile.

`lease.py` makes one per sandbox and proves it, `forward.py` sends calls through it. Not one byte of arguments leaves
before the tool server has proved the sandbox's key. What comes back is read with caps, without decompression, redirects
or cookies, and only named fields of named types survive. It retries nothing.
"""

import asyncio
import hashlib
import hmac
import io
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from towline import failpoints
from towline.api.snapshot import WorkspaceFile
from towline.errors import SandboxFailed
from towline.gateway import ndjson, strict_json
from towline.gateway.result import Reply

PROTOCOL = 1
CONNECT_SECONDS = 2.0
CONTROL_SECONDS = 10.0
"""For hello, seed and cancel: they do next to nothing."""

MAX_CONTROL_BYTES = 16 * 1024
NETWORK_NOT_PROVED = "NetworkNotProved"
"""Reason of a failure that passes by itself: the tool server still looks whether the network policy is in force."""
_INSTANCE = re.compile(r"^[0-9a-f]{32}$")
_CODE = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")
_HTTP_ADDRESS = re.compile(r"^http://[A-Za-z0-9.\-\[\]:]+:[0-9]{1,5}$")

OnOutput = Callable[[int, str], None]
"""Called with the character offset and the text of each piece of output; must not block."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a proven tool server says of itself."""

    instance: str
    seeded: bool
    fresh: bool
    """Its workspace was a new one when the tool server began: whatever is in it came since."""


class SandboxClient:
    """Connections to the tool server of one sandbox. `hello` comes first and may be repeated."""

    def __init__(self, name: str, address: str, key: str) -> None:
        self.name, self.address, self._key = name, address, key.encode()
        connector: aiohttp.BaseConnector
        if address.startswith("unix:"):
            connector, base = aiohttp.UnixConnector(address.removeprefix("unix:"), limit=32), "http://sandbox"
        elif _HTTP_ADDRESS.fullmatch(address):
            connector, base = aiohttp.TCPConnector(limit=32, use_dns_cache=False), address
        else:
            raise SandboxFailed("BadAddress", f"{address!r} is neither unix:PATH nor http://HOST:PORT")
        self._base = base
        self._hello_url, self._seed_url = URL(f"{base}/v1/hello"), URL(f"{base}/v1/seed")
        self._http = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            skip_auto_headers=("User-Agent", "Accept"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            max_headers=32,
        )

    async def aclose(self) -> None:
        await self._http.close()

    async def hello(self) -> Hello:
        """Prove the tool server, and learn which process it is. Raises SandboxFailed: Unreachable, KeyMismatch, …."""
        nonce = secrets.token_hex(16)
        said = await self._control("POST", self._hello_url, {"nonce": nonce})
        instance, proof = said.get("instance"), said.get("proof")
        if said.get("protocol") != PROTOCOL:
            raise SandboxFailed("BadProtocol", f"protocol {said.get('protocol')!r}, expected {PROTOCOL}")
        if not isinstance(instance, str) or not _INSTANCE.fullmatch(instance) or not isinstance(proof, str):
            raise SandboxFailed("BadReply", "the tool server's hello names no instance or proof")
        if not hmac.compare_digest(self._mac(f"towline-toolserver:{nonce}:{instance}").encode(), proof.encode()):
            raise SandboxFailed("KeyMismatch", f"what answers at {self.address} does not hold the key of {self.name}")
        return Hello(instance, seeded=said.get("seeded") is True, fresh=said.get("fresh") is True)

    async def seed(self, instance: str, files: Sequence[WorkspaceFile]) -> None:
        """Put the run's files into a fresh workspace; the tool server does it once per volume, repeats are harmless."""
        listed: list[dict[str, Any]] = [
            {"path": each.path, "content": each.content, **({"mode": 0o755} if each.executable else {})}
            for each in files
        ]
        said = await self._control("POST", self._seed_url, {"files": listed}, instance)
        if said.get("seeded") is not True:
            raise SandboxFailed("BadReply", "the tool server did not seed the workspace")

    async def cancel(self, instance: str, call_id: str) -> None:
        """Kill the call's processes; its stream then ends with outcome cancelled. An unknown call is no error."""
        try:
            await self._control("DELETE", self._call_url(call_id), None, instance)
        except SandboxFailed as fault:
            if fault.reason != "Refused":
                raise

    async def run(
        self, instance: str, call_id: str, body: bytes, on_output: OnOutput, *, acknowledged: Iterable[str] = ()
    ) -> Reply:
        """Run the call, or attach to it if this tool server has it already; the caller bounds the time.

        Raises SandboxFailed: Unreachable when the connection failed before the result (the call may be running: ask
        again), Refused or Overloaded when the tool server did not take the call, Unauthorized when it is another
        process than the one that said hello, Closed after `aclose`, BadReply for anything outside the protocol.
        """
        self._check_open()
        headers = {"Authorization": self._authorization(instance), "Content-Type": "application/json"}
        if ack := ",".join(acknowledged):
            headers["Towline-Ack"] = ack
        failpoints.hit("gateway.forward.before")
        try:
            async with self._http.put(
                self._call_url(call_id), data=_payload(body), headers=headers, allow_redirects=False
            ) as response:
                await _check_head(response, "application/x-ndjson")
                failpoints.hit("gateway.forward.after")
                lines = ndjson.Lines()
                async for chunk in response.content.iter_any():
                    for line in lines.feed(chunk):
                        reply = _message(line, on_output)
                        if reply is not None:
                            await _let_end(response)
                            return reply
                raise SandboxFailed("Unreachable", "the tool server's answer ended before the result")
        except (aiohttp.ClientError, OSError, ndjson.TooMuch, strict_json.Malformed) as fault:
            raise _failure(fault) from fault

    def _check_open(self) -> None:
        if self._http.closed:
            raise SandboxFailed("Closed", "the connections to this sandbox were let go")

    def _call_url(self, call_id: str) -> URL:
        return URL(f"{self._base}/v1/calls/{call_id}", encoded=True)

    def _authorization(self, instance: str) -> str:
        """Good for this one tool server process: another, even in the same sandbox, refuses it by itself."""
        return f"Towline {self._mac(f'towline-gateway:{instance}')}"

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    async def _control(self, method: str, url: URL, body: dict[str, Any] | None, instance: str = "") -> dict[str, Any]:
        """One small exchange: a bounded body in, one JSON object out, `{}` for an empty answer."""
        self._check_open()
        headers = {"Authorization": self._authorization(instance)} if instance else {}
        data = None
        if body is not None:
            headers["Content-Type"], data = "application/json", strict_json.canonical(body)
        try:
            async with (
                asyncio.timeout(CONTROL_SECONDS),
                self._http.request(method, url, data=data, headers=headers, allow_redirects=False) as response,
            ):
                await _check_head(response, "application/json")
                return await _small_object(response)
        except TimeoutError as fault:
            raise SandboxFailed("Unreachable", f"no answer within {CONTROL_SECONDS:.0f} s") from fault
        except (aiohttp.ClientError, OSError, ndjson.TooMuch, strict_json.Malformed) as fault:
            raise _failure(fault) from fault


async def _small_object(response: aiohttp.ClientResponse) -> dict[str, Any]:
    raw = b""
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > MAX_CONTROL_BYTES:
            raise ndjson.TooMuch(f"more than {MAX_CONTROL_BYTES} bytes in one answer")
    return strict_json.loads(raw) if raw else {}


async def _check_head(response: aiohttp.ClientResponse, content_type: str) -> None:
    """Raises SandboxFailed unless what follows is the answer that was asked for."""
    if response.status == 401:
        raise SandboxFailed("Unauthorized", "the tool server is another process than the one that was proved")
    if 300 <= response.status < 400:
        raise SandboxFailed("BadReply", f"the tool server tried to redirect (HTTP {response.status})")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise SandboxFailed("BadReply", "the tool server sent a compressed answer")
    if response.status == 503:
        raise SandboxFailed(NETWORK_NOT_PROVED, "the tool server has not yet seen its network closed")
    if response.status == 429:
        raise SandboxFailed("Overloaded", "the tool server has as many calls as it takes")
    if response.status >= 500:
        raise SandboxFailed("BadReply", f"the tool server answered HTTP {response.status}")
    if not 200 <= response.status < 300:
        complaint = (await _small_object(response)).get("message")
        raise SandboxFailed("Refused", f"the tool server answered HTTP {response.status}: {str(complaint)[:500]}")
    if response.content_type != content_type:
        raise SandboxFailed("BadReply", f"expected {content_type} from the tool server, got something else")


def _payload(body: bytes) -> bytes | io.BytesIO:
    """aiohttp hands a large body to the socket in pieces only if it is a file."""
    return body if len(body) < 64 * 1024 else io.BytesIO(body)


async def _let_end(response: aiohttp.ClientResponse) -> None:
    """Take the end of a finished answer, so that the connection can be used again; a peer that stalls loses it."""
    if response.content.at_eof():
        return
    try:
        async with asyncio.timeout(0.05):
            await response.content.readany()
    except TimeoutError:
        response.close()


def _failure(fault: Exception) -> SandboxFailed:
    if isinstance(fault, ndjson.TooMuch | strict_json.Malformed):
        return SandboxFailed("BadReply", f"the tool server's answer is unusable: {fault}")
    if isinstance(fault, aiohttp.ClientResponseError):
        return SandboxFailed("BadReply", "the tool server's answer is not HTTP as it should be")
    return SandboxFailed("Unreachable", f"the connection to the sandbox failed ({type(fault).__name__})")


def _message(line: bytes, on_output: OnOutput) -> Reply | None:
    """The reply when the line is the result, None when it was a piece of output."""
    message = strict_json.loads(line)
    kind = message.get("type")
    if kind == "result":
        return _reply(message)
    offset = message.get("offset")
    if kind != "output" or type(offset) is not int or offset < 0:
        raise SandboxFailed("BadReply", "the tool server sent a line that is neither output nor result")
    failpoints.hit("gateway.output")
    on_output(offset, _text(message))
    return None


def _reply(message: dict[str, Any]) -> Reply:
    """The named fields with their types and bounds; anything else the tool server sends is dropped."""
    outcome, code = message.get("outcome"), message.get("code")
    if outcome not in ("ok", "error", "cancelled"):
        raise SandboxFailed("BadReply", "outcome: expected ok, error or cancelled")
    if code is not None and (not isinstance(code, str) or not _CODE.fullmatch(code)):
        raise SandboxFailed("BadReply", "code: expected a short word")
    return Reply(
        outcome,
        _text(message),
        total_bytes=_whole(message, "total_bytes", 0, 2**63 - 1) or 0,
        truncated=_flag(message, "truncated"),
        exit_code=_whole(message, "exit_code", -1, 2**32),
        signal=_whole(message, "signal", 0, 128),
        timed_out=_flag(message, "timed_out"),
        killed=_whole(message, "killed", 0, 2**31) or 0,
        code=code,
    )


def _text(message: dict[str, Any]) -> str:
    text = message.get("text")
    if not isinstance(text, str):
        raise SandboxFailed("BadReply", "text: expected text")
    return text.replace("\0", "\ufffd")  # some databases and model providers refuse a text with a NUL


def _whole(message: dict[str, Any], field: str, low: int, high: int) -> int | None:
    value = message.get(field)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise SandboxFailed("BadReply", f"{field}: expected a whole number from {low} to {high}")
    return value


def _flag(message: dict[str, Any], field: str) -> bool:
    value = message.get(field, False)
    if not isinstance(value, bool):
        raise SandboxFailed("BadReply", f"{field}: expected true or false")
    return value
