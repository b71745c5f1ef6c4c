"""The HTTP surface: every generation of MCP, who is let in, and what is refused before a call is a call."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from towline.events.log import EventLog
from towline.events.store import Store
from towline.naming import CALL_ID_META

GENERATIONS = ["2026-07-28", "legacy"]


@asynccontextmanager
async def sdk_client(world: Any, gateway: Any, mode: str) -> AsyncIterator[Client]:
    """The SDK's own client, as a user of the gateway would make it."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {world.token()}"}) as http,
        Client(streamable_http_client(gateway.url, http_client=http), mode=mode) as client,
    ):
        yield client


def body_of(tool: str = "exec", **params: Any) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        **params.pop("_meta", {}),
    }
    values = {"name": tool, "arguments": {"command": "echo hi"}, **params, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": values}


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_the_sdks_client_lists_and_calls_tools(world, mode):
    gateway = await world.gateway()

    async with sdk_client(world, gateway, mode) as client:
        listed = (await client.list_tools()).tools
        result = await client.call_tool("exec", {"command": "echo hello"}, meta={CALL_ID_META: "tc_1"})

    assert [tool.name for tool in listed] == ["exec", "read_file", "write_file", "edit_file", "list_dir", "search"]
    assert all(tool.input_schema["additionalProperties"] is False for tool in listed)
    assert all(tool.meta == {"anthropic/maxResultSizeChars": 100_000} for tool in listed)
    assert (result.content[0].text, result.is_error, result.structured_content) == ("hello", False, None)
    assert result.meta is not None
    assert result.meta["towline.dev/outcome"] == "ok"
    assert world.operator.sandbox.executions == ["tc_1"]


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_connecting_and_listing_wants_no_sandbox(world, mode):
    gateway = await world.gateway()

    async with sdk_client(world, gateway, mode) as client:
        await client.list_tools()

    assert (await EventLog(world.store, world.run).state()).want == ""
    assert world.operator.sandboxes == []


async def test_the_tool_list_is_the_runs_own_in_its_order(world_of):
    world = await world_of(tools=("search", "exec"))
    gateway = await world.gateway()

    async with sdk_client(world, gateway, "2026-07-28") as client:
        listed = (await client.list_tools()).tools

    assert [tool.name for tool in listed] == ["search", "exec"]


async def test_both_faces_give_the_same_answer_to_the_same_call(world, monkeypatch):
    gateway = await world.gateway()
    fast = await world.call(gateway, "exec", {"command": "echo same"}, call_id="tc_1")
    monkeypatch.setattr("towline.gateway.front.MODERN_PROTOCOL_VERSIONS", ())

    sdk = await world.call(gateway, "exec", {"command": "echo same"}, call_id="tc_1")

    assert (fast.status, fast.body) == (sdk.status, sdk.body)


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"id": None}, {}),
        ({"jsonrpc": "1.0"}, {}),
        ({"params": {"name": "exec"}}, {}),
        ({"params": None}, {}),
        ({}, {"MCP-Protocol-Version": "2027-01-01"}),
        ({}, {"Mcp-Name": "read_file"}),
        ({}, {"Mcp-Method": "tools/list"}),
    ],
)
async def test_both_faces_refuse_the_same_malformed_requests(world, monkeypatch, change, headers):
    gateway = await world.gateway()
    raw = json.dumps({**body_of(), **change}).encode()
    sent = {"Mcp-Method": "tools/call", "Mcp-Name": "exec", **headers}
    fast = await world.post(gateway, raw, headers=sent)
    monkeypatch.setattr("towline.gateway.front.MODERN_PROTOCOL_VERSIONS", ())

    sdk = await world.post(gateway, raw, headers=sent)

    assert fast.status == sdk.status == 400
    assert fast.body["error"]["code"] == sdk.body["error"]["code"]
    assert await world.events("agent.tool_use") == []


async def test_refusals_reach_callers_of_the_older_generations_too(world):
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"}, token=world.token(epoch=2))

    async with sdk_client(world, gateway, "legacy") as client:
        with pytest.raises(Exception, match="stale") as caught:
            await client.call_tool("exec", {"command": "echo 2"})

    assert caught.value.error.data == {"reason": "Fenced"}


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer nonsense", "Basic YTpi"])
async def test_without_a_good_token_nothing_is_answered(world, authorization):
    gateway = await world.gateway()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if authorization is not None:
        headers["Authorization"] = authorization

    async with world.http.post(gateway.url, data=json.dumps(body_of()), headers=headers) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await response.json())["error"]["message"] == "unauthenticated"


async def test_an_expired_token_and_a_foreign_key_are_refused(world):
    gateway = await world.gateway()
    expired = world.token(seconds=-60)
    world.identity_key = b"another key, another key, another key"

    for token in (expired, world.token()):
        answer = await world.call(gateway, token=token)
        assert answer.status == 401


async def test_a_token_is_not_asked_of_health(world):
    gateway = await world.gateway()

    for path in ("healthz", "readyz"):
        async with world.http.get(f"http://127.0.0.1:{gateway.port}/{path}") as response:
            assert response.status == 200


async def test_routing_headers_that_contradict_the_body_are_refused(world):
    gateway = await world.gateway()

    for headers in ({"Mcp-Name": "read_file"}, {"Mcp-Method": "tools/list"}):
        answer = await world.call(gateway, "exec", {"command": "echo 1"}, headers=headers)
        assert (answer.status, answer.body["error"]["code"]) == (400, -32020)
    assert world.operator.sandboxes == []


async def test_older_generations_may_not_contradict_the_body_either(world):
    gateway = await world.gateway()
    headers = {"MCP-Protocol-Version": "2025-11-25", "Mcp-Name": "read_file"}

    answer = await world.post(gateway, json.dumps(body_of()).encode(), headers=headers)

    assert (answer.status, answer.body["error"]["code"]) == (400, -32020)


async def test_a_routing_header_sent_twice_is_refused(world):
    gateway = await world.gateway()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    raw = json.dumps(body_of()).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {world.token()}\r\n"
        "Content-Type: application/json\r\nAccept: */*\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: exec\r\nMcp-Name: exec\r\nContent-Length: {len(raw)}\r\n\r\n"
    )

    writer.write(head.encode() + raw)

    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 400")
    writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list"} {}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","name":"exec"}}',
        b'{"jsonrpc":"2.0","id":NaN,"method":"tools/list"}',
        b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"\xff\xfe{}",
    ],
)
async def test_a_body_with_a_second_reading_is_refused(world, raw):
    gateway = await world.gateway()

    answer = await world.post(gateway, raw)

    assert (answer.status, answer.body["error"]["code"]) == (400, -32700)


async def test_a_body_above_four_mebibytes_is_refused(world):
    gateway = await world.gateway()
    raw = json.dumps(body_of(arguments={"command": "x" * (5 * 1024 * 1024)})).encode()

    async def chunked():
        for start in range(0, len(raw), 65536):
            yield raw[start : start + 65536]

    declared = await world.post(gateway, raw)
    assert declared.status == 413
    headers = {"Authorization": f"Bearer {world.token()}", "Content-Type": "application/json", "Accept": "*/*"}
    try:
        async with world.http.post(gateway.url, data=chunked(), headers=headers) as streamed:
            assert streamed.status == 413
    except OSError:
        pass  # the gateway closed while we were still sending, which is as good


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Accept": "text/html"}, 406),
    ],
)
async def test_what_no_client_of_ours_would_send_is_refused(world, headers, status):
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "echo 1"}, headers=headers)

    assert answer.status == status


async def test_only_post_is_served(world):
    gateway = await world.gateway()
    headers = {"Authorization": f"Bearer {world.token()}"}

    for method in ("GET", "DELETE", "PUT"):
        async with world.http.request(method, gateway.url, headers=headers) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_contradictory_lengths_are_not_a_request(world):
    gateway = await world.gateway()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)

    writer.write(
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )

    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 400")
    writer.close()


@pytest.mark.parametrize("said", [b"", b"POST /mcp HTTP/1.1\r\nHost: ", b"\r\n"])
async def test_a_connection_that_says_too_little_is_closed(world, monkeypatch, said):
    monkeypatch.setattr("towline.gateway.listening.HEAD_SECONDS", 0.2)
    gateway = await world.gateway()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)

    writer.write(said)

    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_a_head_without_end_is_closed(world):
    gateway = await world.gateway()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)

    writer.write(b"POST /mcp HTTP/1.1\r\nX-Long: " + b"a" * 1_000_000)

    try:
        assert await asyncio.wait_for(reader.read(), 60) == b""
    except ConnectionError:
        pass  # reset instead of closed: there was more than it would read
    writer.close()


async def test_a_body_that_drips_is_given_up(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.front.BODY_SECONDS", 0.2)
    gateway = await world.gateway()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {world.token()}\r\n"
        "Content-Type: application/json\r\nAccept: */*\r\nContent-Length: 1000\r\n\r\n{"
    )

    writer.write(head.encode())

    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_a_long_call_is_kept_alive_by_comments_and_ends_with_its_result(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.fast_path.PING_SECONDS", 0.05)
    gateway = await world.gateway()
    headers = {
        "Authorization": f"Bearer {world.token()}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "exec",
    }
    raw = json.dumps(body_of(arguments={"command": "hold a"})).encode()

    async with world.http.post(gateway.url, data=raw, headers=headers) as response:
        assert response.content_type == "text/event-stream"
        pings = [await asyncio.wait_for(response.content.readline(), 60) for _ in range(4)]
        (await world.operator.started()).release("a")
        rest = (await response.text()).splitlines()

    assert pings == [b": ping\r\n", b"\r\n"] * 2
    data = next(line.removeprefix("data: ") for line in rest if line.startswith("data: "))
    assert json.loads(data)["result"]["content"][0]["text"] == "held a"


async def test_when_the_store_is_away_callers_are_told_to_come_back(world, tmp_path):
    gateway = await world.gateway(Store.connect(f"unix://{tmp_path}/gone", patience_seconds=0))

    answer = await world.call(gateway, "exec", {"command": "echo 1"})

    assert (answer.status, answer.reason, answer.headers["retry-after"]) == (503, "StoreUnavailable", "1")
    async with world.http.get(f"http://127.0.0.1:{gateway.port}/readyz") as response:
        assert response.status == 503
