"""What a sandbox in the wrong hands can answer, and that it gets nothing for it: bounds before parsing, data only."""

import asyncio
import gzip
import hashlib
import hmac
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from towline.errors import SandboxFailed
from towline.gateway.sandbox_client import SandboxClient

KEY = "k" * 64
RESULT = {"type": "result", "outcome": "ok", "text": "hello", "total_bytes": 5, "exit_code": 0}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunked(*lines: object) -> bytes:
    """Lines as one chunk each, and the end."""
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in encoded) + b"0\r\n\r\n"


def answer(*lines: object, head: bytes = HEAD) -> Script:
    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + b"\r\n" + chunked(*lines))

    return write


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Callable[[Script], Awaitable[SandboxClient]]]:
    """Makes a client of a tool server that proves its key and then answers every call by the script."""
    stop: list[Callable[[], Awaitable[object]]] = []

    async def serve(script: Script) -> SandboxClient:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while (head := await reader.readuntil(b"\r\n\r\n")) is not None:
                    length = next(
                        (
                            int(line.split(b":")[1])
                            for line in head.split(b"\r\n")
                            if line.startswith(b"Content-Length")
                        ),
                        0,
                    )
                    body = await reader.readexactly(length)
                    if b"/v1/hello" in head:
                        text = f"towline-toolserver:{json.loads(body)['nonce']}:{'a' * 32}"
                        proof = hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()
                        said = json.dumps({"protocol": 1, "instance": "a" * 32, "proof": proof, "seeded": True})
                        kind = "Content-Type: application/json"
                        writer.write(f"HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
                    else:
                        await script(reader, writer)
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        path = tmp_path / "hostile.sock"
        server = await asyncio.start_unix_server(connection, path)
        client = SandboxClient("sandbox-1", f"unix:{path}", KEY)
        stop.extend([client.aclose, lambda: _closed(server)])
        await client.hello()
        return client

    async def _closed(server: asyncio.Server) -> None:
        server.close()
        await asyncio.sleep(0)

    yield serve
    for each in stop:
        await each()


async def run(client: SandboxClient, output: list[tuple[int, str]] | None = None, seconds: float = 10):
    async with asyncio.timeout(seconds):
        return await client.run(
            "a" * 32, "tc_1", b"{}", lambda offset, text: (output if output is not None else []).append((offset, text))
        )


async def refused(client: SandboxClient) -> SandboxFailed:
    with pytest.raises(SandboxFailed) as caught:
        await run(client)
    return caught.value


async def test_output_and_result_of_an_honest_sandbox_arrive(sandbox):
    output: list[tuple[int, str]] = []
    client = await sandbox(answer({"type": "output", "offset": 0, "text": "hel"}, RESULT))

    reply = await run(client, output)

    assert (reply.outcome, reply.text, reply.exit_code, output) == ("ok", "hello", 0, [(0, "hel")])


async def test_fields_that_nobody_asked_for_are_dropped(sandbox):
    extra = {
        "tools": [{"name": "evil"}],
        "content": [{"type": "resource_link"}],
        "_meta": {"x": 1},
        "duration_ms": "no",
    }
    client = await sandbox(answer({**RESULT, **extra}))

    reply = await run(client)

    assert not {"tools", "content", "_meta"} & set(type(reply).__slots__)
    assert reply.text == "hello"


async def test_a_nul_which_some_providers_refuse_does_not_get_through(sandbox):
    client = await sandbox(answer({**RESULT, "text": "a\x00b"}))

    assert (await run(client)).text == "a\ufffdb"


async def test_one_connection_serves_many_calls(sandbox):
    connections: set[object] = set()

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        writer.write(HEAD + b"\r\n" + chunked(RESULT))

    client = await sandbox(script)
    for _ in range(5):
        await run(client)

    assert len(connections) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b"null\n",
        b'"result"\n',
        b"\xff\xfe\n",
        b'{"type":"result","type":"output"}\n',
        b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}\n",
        b'{"a":' + b"[" * 100_000 + b"\n",
        b'{"type":"result","outcome":"ok","text":"x","exit_code":NaN}\n',
        {**RESULT, "outcome": "granted"},
        {**RESULT, "outcome": None},
        {**RESULT, "text": ["x"]},
        {**RESULT, "text": None},
        {**RESULT, "exit_code": "0"},
        {**RESULT, "exit_code": True},
        {**RESULT, "exit_code": 10**30},
        {**RESULT, "total_bytes": -1},
        {**RESULT, "total_bytes": 1.5},
        {**RESULT, "truncated": "yes"},
        {**RESULT, "killed": {}},
        {**RESULT, "code": "a b\n"},
        {**RESULT, "code": "x" * 1000},
        {"type": "tools/list_changed"},
        {"type": "output", "offset": -1, "text": "x"},
        {"type": "output", "offset": "0", "text": "x"},
        {"type": "output", "offset": 0, "text": 5},
        {"type": "output", "offset": 0},
    ],
)
async def test_a_line_of_another_shape_is_a_bad_reply(sandbox, line):
    client = await sandbox(answer(line, RESULT))

    assert (await refused(client)).reason == "BadReply"


async def test_a_line_without_end_is_cut_off(sandbox):
    sent = 0

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(HEAD + b"\r\n")
        while True:
            writer.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
            sent += 65536
            await writer.drain()

    client = await sandbox(endless)

    assert (await refused(client)).reason == "BadReply"
    assert sent < 8 * 1024 * 1024


async def test_output_without_end_is_cut_off(sandbox):
    piece = json.dumps({"type": "output", "offset": 0, "text": "a" * 8000}).encode() + b"\n"

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\n")
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()

    client = await sandbox(endless)

    assert (await refused(client)).reason == "BadReply"


async def test_a_drip_ends_at_the_callers_deadline(sandbox):
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\n")
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    client = await sandbox(drip)

    with pytest.raises(TimeoutError):
        await run(client, seconds=0.3)


async def test_an_answer_that_stalls_after_its_result_is_not_waited_for(sandbox):
    async def stall(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = json.dumps(RESULT).encode() + b"\n"
        writer.write(HEAD + b"\r\n%x\r\n%b\r\n" % (len(line), line))

    client = await sandbox(stall)

    assert (await run(client, seconds=5)).text == "hello"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_compressed_answer_is_refused_unread(sandbox, encoding):
    bomb = gzip.compress(b"a" * 10_000_000) if "gzip" in encoding else zlib.compress(b"a" * 10_000_000)
    client = await sandbox(answer(bomb, head=HEAD + f"Content-Encoding: {encoding}\r\n".encode()))

    assert "compressed" in (await refused(client)).message


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(sandbox, status):
    asked = []

    async def redirect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(status)
        writer.write(f"HTTP/1.1 {status} Go\r\nLocation: http://127.0.0.1:1/evil\r\nContent-Length: 0\r\n\r\n".encode())

    client = await sandbox(redirect)

    assert (await refused(client)).reason == "BadReply"
    assert asked == [status]


async def test_a_cookie_is_not_kept(sandbox):
    heads: list[bytes] = []

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Set-Cookie: a=b; Path=/\r\n\r\n" + chunked(RESULT))

    client = await sandbox(script)
    original = client._http._request

    async def watched(method, url, **options):
        response = await original(method, url, **options)
        heads.append(repr(response.request_info.headers).encode())
        return response

    client._http._request = watched
    await run(client)
    await run(client)

    assert len(heads) == 2
    assert b"Cookie" not in heads[1]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n", "BadReply"),
        (b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n", "BadReply"),
        (b"HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm=x\r\nTransfer-Encoding: chunked\r\n", "Unauthorized"),
        (b"HTTP/1.1 429 Busy\r\nTransfer-Encoding: chunked\r\n", "Overloaded"),
        (HEAD + b"X: " + b"a" * 100_000 + b"\r\n", "BadReply"),
        (HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(10_000)), "BadReply"),
        (b"SSH-2.0-OpenSSH\r\n", "BadReply"),
    ],
)  # fmt: skip
async def test_an_answer_with_another_head_is_refused(sandbox, head, reason):
    client = await sandbox(answer(RESULT, head=head))

    assert (await refused(client)).reason == reason


async def test_an_answer_that_breaks_off_is_unreachable_so_that_it_is_asked_again(sandbox):
    async def broken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\n5\r\nhel")
        await writer.drain()
        writer.transport.abort()

    client = await sandbox(broken)

    assert (await refused(client)).reason == "Unreachable"


async def test_a_call_through_connections_that_were_let_go_is_a_failure_of_the_sandbox(sandbox):
    client = await sandbox(answer(RESULT))
    await client.aclose()

    assert (await refused(client)).reason == "Closed"


async def test_a_refusals_reason_is_told_but_bounded(sandbox):
    said = json.dumps({"error": "TooLarge", "message": "m" * 5000}).encode()
    head = b"HTTP/1.1 413 No\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    client = await sandbox(answer(said, head=head))

    fault = await refused(client)

    assert fault.reason == "Refused"
    assert len(fault.message) < 600


@pytest.mark.parametrize(
    "address", ["http://user@host:1", "http://host", "https://h:1", "ftp://h:1", "http://h:1/x", ""]
)
async def test_an_address_of_another_form_is_never_dialled(address):
    with pytest.raises(SandboxFailed, match="BadAddress"):
        SandboxClient("sandbox-1", address, KEY)
