"""What the gateway adds to one tool call: harness → gateway → tool server and back, less the direct call.

The harness' own client, a sealed gateway process, a tool server from the bundle, tokens, policy, ledger and durable
events: nothing is left out. Each call through the gateway follows a direct call of the same tool to the same tool
server; a figure is taken from the differences of these pairs.
"""

import gc
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from bench.figure import Figure, Goal, median, milliseconds, quantile, spread
from bench.stage import Stage, ToolServer, stage
from towline.errors import SandboxFailed
from towline.events.event import RunRef
from towline.gateway.sandbox_client import SandboxClient
from towline.harness.process import open_session
from towline.harness.tools import PROTOCOL_VERSION, Gateway
from towline.harness.transcript import ToolUse

EXEC: tuple[str, dict[str, Any]] = ("exec", {"command": "true"})
READ: tuple[str, dict[str, Any]] = ("read_file", {"path": "kilobyte"})
KILOBYTE = b"0123456789abcde\n" * 64
WARM_UP_CALLS = 50
SDK_EVERY = 4
"""The comparison needs fewer calls: only its median is told."""

Ask = Callable[[str, Mapping[str, Any]], Awaitable[None]]


@dataclass
class Timings:
    """Seconds of each call; the n-th direct call came just before the n-th through the gateway."""

    direct: list[float] = field(default_factory=list)
    through: list[float] = field(default_factory=list)
    sdk_added: list[float] = field(default_factory=list)

    @property
    def added(self) -> list[float]:
        return [through - direct for through, direct in zip(self.through, self.direct, strict=True)]

    def told(self) -> str:
        """Both ways, in full."""
        return f"p50/p99 through the gateway {spread(self.through)}, direct {spread(self.direct)}"


async def measure(quick: bool) -> AsyncIterator[Figure]:
    calls = 100 if quick else 1000
    async with stage() as on:
        await on.start_gateway()
        run = await on.new_run()
        server = await on.start_tool_server(run)
        (server.volume / "workspace" / "kilobyte").write_bytes(KILOBYTE)
        async with callers(on, run, server) as ask:
            for figure in figures("toolcall_added", "exec true", await interleaved(calls, EXEC, *ask)):
                yield figure
            for figure in figures("toolcall_read_added", "read_file 1 KiB", await interleaved(calls, READ, *ask)):
                yield figure
    async with stage() as on:
        run = await on.new_run()
        try:
            server = await on.start_sandbox(run)
        except SandboxFailed as fault:
            print(f"  no figure for a call into bubblewrap: {fault.reason}")
            return
        await on.start_gateway()
        async with callers(on, run, server) as ask:
            timings = await interleaved(calls // 2, EXEC, *ask)
            for figure in figures("toolcall_bubblewrap_added", "exec true in a bubblewrap sandbox", timings):
                yield figure


def figures(name: str, tool: str, timings: Timings) -> list[Figure]:
    added, samples = timings.added, len(timings.direct)
    sdk = milliseconds(median(timings.sdk_added))
    note = f"{tool}; {timings.told()}"
    return [
        Figure(
            name=f"{name}_p50",
            value=milliseconds(median(added)),
            unit="ms",
            goal=Goal(2),
            comparison=("mcp_sdk_client_added_p50", sdk),
            samples=samples,
            note=note,
        ),
        Figure(
            name=f"{name}_p99",
            value=milliseconds(quantile(added, 0.99)),
            unit="ms",
            goal=Goal(5),
            samples=samples,
            note=note,
        ),
    ]


async def interleaved(calls: int, tool: tuple[str, Mapping[str, Any]], direct: Ask, harness: Ask, sdk: Ask) -> Timings:
    """Direct, through the gateway, direct, … and now and then the MCP SDK's client through the same gateway."""
    for ask in (direct, harness, sdk):
        for _ in range(WARM_UP_CALLS):
            await ask(*tool)
    gc.collect()
    gc.freeze()  # as the harness does when it has loaded: the SDK, which it does not load, must not slow it down here
    timings = Timings()
    for number in range(calls):
        begun = perf_counter()
        await direct(*tool)
        between = perf_counter()
        await harness(*tool)
        ended = perf_counter()
        timings.direct.append(between - begun)
        timings.through.append(ended - between)
        if number % SDK_EVERY == 0:
            await sdk(*tool)
            timings.sdk_added.append(perf_counter() - ended - timings.direct[-1])
    return timings


@asynccontextmanager
async def callers(on: Stage, run: RunRef, server: ToolServer) -> AsyncIterator[tuple[Ask, Ask, Ask]]:
    """The three ways to call a tool: the tool server itself, the harness' client, the SDK's client."""
    await on.offer(run, server)
    token = on.token_file(run)
    ids = (f"tc_{number:012x}_0" for number in itertools.count())
    async with AsyncExitStack() as closing:
        client = SandboxClient(server.name, server.endpoint, server.key)
        closing.push_async_callback(client.aclose)
        instance = (await client.hello()).instance
        settled: list[str] = []

        async def direct(tool: str, arguments: Mapping[str, Any]) -> None:
            call_id = next(ids)
            body = json.dumps({"tool": tool, "arguments": arguments, "timeout_seconds": 120}).encode()
            reply = await client.run(instance, call_id, body, lambda _offset, _text: None, acknowledged=settled)
            settled[:] = [call_id]
            assert reply.outcome == "ok", reply

        session = await closing.enter_async_context(open_session())
        gateway = Gateway(session, on.gateway_url, token)

        async def harness(tool: str, arguments: Mapping[str, Any]) -> None:
            result = await gateway.call(ToolUse(next(ids), tool, arguments))
            assert result.outcome == "ok", result

        http = await closing.enter_async_context(
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token.read_text()}"})
        )
        transport = streamable_http_client(on.gateway_url, http_client=http)
        sdk_client = await closing.enter_async_context(Client(transport, mode=PROTOCOL_VERSION))

        async def sdk(tool: str, arguments: Mapping[str, Any]) -> None:
            result = await sdk_client.call_tool(tool, dict(arguments))
            assert not result.is_error, result

        yield direct, harness, sdk
