"""The gateway client: one recorded result for each call, whatever happens on the way, and never a wait without end."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import uvicorn
from aiohttp import web
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as McpTool

from tests.local.harness.gateway import RESULT, error, plain, result, serving, stream
from towline.errors import Fenced, LogClosed, RunCancelled, Unauthenticated
from towline.events.event import Seen
from towline.harness import tools
from towline.harness.models.base import Tool
from towline.harness.ports import GatewayRefused, GatewayUnavailable
from towline.harness.process import open_session
from towline.harness.tools import Gateway, header_value
from towline.harness.transcript import ToolResult, ToolUse

USE = ToolUse("tc_a_0", "exec", {"command": "ls"})


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("token-1\n")
    return file


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(tools, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(tools, "LONGEST_PAUSE_SECONDS", 0.02)


async def call(url, token_file, use=USE):
    async with open_session() as session:
        return await Gateway(session, url, token_file).call(use)


async def test_a_call_is_one_post_with_the_headers_of_the_protocol(token_file):
    async with serving(result()) as (gateway, url):
        assert await call(url, token_file) == ToolResult("tc_a_0", "out", False, "ok")

    [(headers, body)] = gateway.requests
    assert headers["Authorization"] == "Bearer token-1"
    assert headers["MCP-Protocol-Version"] == "2026-07-28"
    assert (headers["Mcp-Method"], headers["Mcp-Name"]) == ("tools/call", "exec")
    assert body["params"] == {
        "name": "exec",
        "arguments": {"command": "ls"},
        "_meta": {**tools.ENVELOPE, "towline.dev/call-id": "tc_a_0"},
    }


async def test_unusable_arguments_travel_beside_an_empty_object(token_file):
    async with serving(result()) as (gateway, url):
        await call(url, token_file, ToolUse("tc_a_0", "", None, '{"command": '))

    params = gateway.requests[0][1]["params"]
    assert (params["name"], params["arguments"]) == ("_", {})
    assert params["_meta"]["towline.dev/unparsable"] == '{"command": '


async def test_a_result_in_a_stream_is_found_among_pings_and_notifications(token_file):
    notification = {"method": "notifications/progress", "params": {"progress": 1}}
    failed = {**RESULT, "isError": True, "_meta": {"towline.dev/outcome": "denied"}}
    async with serving(stream(notification, {"result": failed})) as (_, url):
        assert await call(url, token_file) == ToolResult("tc_a_0", "out", True, "denied")


@pytest.mark.parametrize(
    "trouble",
    [
        plain(500),
        plain(502),
        plain(503, "{}", "application/json"),
        plain(429),
        plain(200),
        plain(200, "{", "application/json"),
        plain(200, "[]", "application/json"),
        plain(200, '{"jsonrpc": "2.0"}', "application/json"),
        error("StoreUnavailable", status=503),
        error("Busy", status=429),
        error(None, code=-32603),
        stream(cut=True),
        stream({"method": "notifications/progress"}, cut=True),
        stream(),
    ],
)
async def test_trouble_on_the_way_is_met_by_asking_again_with_the_same_id(trouble, token_file):
    async with serving(trouble, trouble, result()) as (gateway, url):
        assert (await call(url, token_file)).text == "out"

    ids = {body["params"]["_meta"]["towline.dev/call-id"] for _, body in gateway.requests}
    assert (len(gateway.requests), ids) == (3, {"tc_a_0"})


class Tail:
    """The run's log, lost up to seq 5 until it is flushed."""

    def __init__(self):
        self.seen, self.adopted = Seen(9, 1, "ev_9"), []

    def adopt(self, call):
        self.adopted.append(call)

    async def flush(self):
        self.seen = Seen(11, 2)


async def test_a_call_that_the_store_lost_is_asked_for_again_once_the_log_is_whole_and_its_events_are_kept(token_file):
    told = [{"id": "ev_1", "type": "agent.tool_use", "time": "t1", "decision": {}}]
    record = {"args_hash": "a1", "seq": [12, 13], "events": told}
    meta = {"towline.dev/outcome": "ok", "towline.dev/record": record}
    lost, tail = error("StoreLost", status=503, dispatched="sandbox-1 abc"), Tail()
    async with serving(lost, result({**RESULT, "_meta": meta})) as (gateway, url), open_session() as session:
        await Gateway(session, url, token_file, tail).call(USE)

    first, second = (params["_meta"] for params in gateway.calls)
    assert (first["towline.dev/seen"], "towline.dev/dispatched" in first) == ("9 1 ev_9", False)
    assert (second["towline.dev/seen"], second["towline.dev/dispatched"]) == ("11 2", "sandbox-1 abc")
    [call] = tail.adopted
    assert (call.call_id, call.first, call.last, call.drafts[0].id) == ("tc_a_0", 12, 13, "ev_1")


@pytest.mark.parametrize(
    ("reason", "kind"), [("Fenced", Fenced), ("LogClosed", LogClosed), ("Cancelled", RunCancelled)]
)
async def test_a_run_that_is_no_longer_ours_stops_us(reason, kind, token_file):
    async with serving(error(reason, message="epoch 1 is stale")) as (gateway, url):
        with pytest.raises(kind, match="epoch 1 is stale"):
            await call(url, token_file)

    assert len(gateway.requests) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        error("CallMismatch"),
        error("UnknownRun"),
        error(None, code=-32602, status=400),
        plain(404),
        plain(403),
        plain(302),
    ],
)
async def test_a_refusal_is_not_repeated(refusal, token_file):
    async with serving(refusal) as (gateway, url):
        with pytest.raises(GatewayRefused):
            await call(url, token_file)

    assert len(gateway.requests) == 1


async def test_a_token_that_is_just_being_rotated_gets_a_second_chance(token_file):
    async def unauthorised(request, id_):
        token_file.write_text("token-2")
        return web.Response(status=401)

    async with serving(unauthorised, result()) as (gateway, url):
        assert (await call(url, token_file)).text == "out"

    assert gateway.requests[1][0]["Authorization"] == "Bearer token-2"


async def test_a_token_that_stays_refused_ends_the_attempt(token_file):
    async with serving(plain(401)) as (gateway, url):
        with pytest.raises(Unauthenticated):
            await call(url, token_file)

    assert len(gateway.requests) == 4


async def test_tokens_refused_now_and_then_in_a_long_call_end_nothing(token_file):
    refused = [plain(401)] * 3
    async with serving(*refused, stream(cut=True), *refused, error("StoreLost", status=503), *refused, result()) as (
        gateway,
        url,
    ):
        assert (await call(url, token_file)).text == "out"

    assert len(gateway.requests) == 12


async def test_a_gateway_that_takes_the_call_and_dies_of_it_each_time_is_given_up(token_file, monkeypatch):
    monkeypatch.setattr(tools, "PATIENCE_SECONDS", 0.5)
    async with serving(stream(cut=True)) as (gateway, url):
        with pytest.raises(GatewayUnavailable):
            async with asyncio.timeout(60):
                await call(url, token_file)

    assert len(gateway.requests) > 2


async def test_a_call_that_was_waited_for_long_is_not_given_up_because_its_gateways_were_replaced(
    token_file, monkeypatch
):
    monkeypatch.setattr(tools, "PATIENCE_SECONDS", 0.2)

    async def replaced(request, id_):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0.3)
        request.transport.close()
        return response

    async with serving(replaced, replaced, replaced, result()) as (_, url):
        assert (await call(url, token_file)).text == "out"


async def test_a_gateway_that_stays_away_is_given_up(token_file, monkeypatch):
    monkeypatch.setattr(tools, "PATIENCE_SECONDS", 0.1)
    async with serving(result()) as (_, url):
        pass

    with pytest.raises(GatewayUnavailable, match="ClientConnectorError"):
        await call(url, token_file)


async def test_an_answer_without_end_is_refused(token_file, monkeypatch):
    monkeypatch.setattr(tools, "MAX_ANSWER_BYTES", 1000)
    async with serving(result({"content": [{"type": "text", "text": "x" * 2000}]})) as (_, url):
        with pytest.raises(GatewayRefused, match="exceeds 1000 bytes"):
            await call(url, token_file)


async def test_cancelling_leaves_the_connection_so_that_the_gateway_notices(token_file):
    async with serving(stream(hang=True)) as (gateway, url):
        waiting = asyncio.create_task(call(url, token_file))
        async with asyncio.timeout(60):
            while not gateway.requests:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await gateway.left.wait()


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("exec", "exec"),
        ("two words", "two words"),
        (" edge", "=?base64?IGVkZ2U=?="),
        ("schön", "=?base64?c2Now7Zu?="),
        ("line\nbreak", "=?base64?bGluZQpicmVhaw==?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
    ],
)
def test_any_tool_name_fits_into_a_header(name, header):
    assert header_value(name) == header


@asynccontextmanager
async def sdk_server():
    """The protocol's own server, as a check on what we send."""

    async def list_tools(context, params):
        return ListToolsResult(tools=[McpTool(name="exec", description="Run.", input_schema={"type": "object"})])

    async def call_tool(context, params):
        text = f"{params.name} {params.arguments}"
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=params.name != "exec")

    manager = StreamableHTTPSessionManager(
        Server("sdk", on_list_tools=list_tools, on_call_tool=call_tool), json_response=False, stateless=True
    )
    config = uvicorn.Config(
        manager.handle_request, port=0, log_level="error", lifespan="off", ws="none", interface="asgi3"
    )
    server = uvicorn.Server(config)
    async with manager.run():
        serving_task = asyncio.create_task(server.serve())
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
        server.should_exit = True
        await serving_task


async def test_the_protocol_s_own_server_understands_us(token_file):
    async with sdk_server() as url, open_session() as session:
        gateway = Gateway(session, url, token_file)
        await gateway.connect()
        known = await gateway.call(USE)
        unknown = await gateway.call(ToolUse("tc_a_1", "schön\n", {}))

    assert gateway.offered == (Tool("exec", "Run.", {"type": "object"}),)
    assert known == ToolResult("tc_a_0", "exec {'command': 'ls'}", False, "ok")
    assert unknown == ToolResult("tc_a_1", "schön\n {}", True, "error")
