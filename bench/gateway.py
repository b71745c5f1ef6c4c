"""How many calls a gateway carries on one core, and whether its memory stays flat: 16 callers, 8 runs, 8 tool servers.

Load generator, store and tool servers share the machine with it, so calls per second of wall time would say more about
them: what counts is the gateway's own CPU time.
"""

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter

import aiohttp

from bench.figure import Figure, Goal, milliseconds, spread
from bench.proc import cpu_seconds, memory_mb
from bench.stage import Stage, stage
from bench.toolcall import KILOBYTE, READ
from towline.harness.process import open_session
from towline.harness.tools import Gateway
from towline.harness.transcript import ToolUse

RUNS, CALLERS_PER_RUN = 8, 2
WARM_UP_CALLS = 2000
"""Until every run is bound and what the gateway keeps per run, such as the calls not yet acknowledged, has its size."""


async def measure(quick: bool) -> AsyncIterator[Figure]:
    calls = 1000 if quick else 10_000
    async with stage() as on:
        pid = (await on.start_gateway()).pid
        clients = [await _client(on) for _ in range(RUNS)]
        try:
            await _load(clients, WARM_UP_CALLS // (10 if quick else 1), "w")
            memory, cpu, begun = memory_mb(pid), cpu_seconds(pid), perf_counter()
            latencies = await _load(clients, calls, "m")
            cpu, wall, grown = cpu_seconds(pid) - cpu, perf_counter() - begun, memory_mb(pid) - memory
        finally:
            for _, session in clients:
                await session.close()
        yield Figure(
            name="gateway_calls_per_second_per_core",
            value=calls / cpu,
            unit="1/s",
            goal=Goal(1000, at_least=True),
            samples=calls,
            note=f"read_file 1 KiB, {RUNS * CALLERS_PER_RUN} at once over {RUNS} runs; {milliseconds(cpu / calls):.2f} "
            f"ms of gateway CPU a call; with all the rest on one machine {calls / wall:.0f} calls/s, "
            f"gateway on {cpu / wall:.2f} cores, p50/p99 {spread(latencies)}",
        )
        yield Figure(
            name="gateway_memory",
            value=memory + grown,
            unit="MB",
            samples=1,
            note=f"VmRSS after {calls} calls; VmHWM {memory_mb(pid, 'VmHWM'):.1f}",
        )
        yield Figure(
            name="gateway_memory_growth",
            value=grown,
            unit="MB",
            goal=Goal(2),
            samples=calls,
            note=f"VmRSS after {calls} calls less before them ({memory:.1f} MB), after a warm-up",
        )


async def _client(on: Stage) -> tuple[Gateway, aiohttp.ClientSession]:
    run = await on.new_run()
    server = await on.start_tool_server(run)
    (server.volume / "workspace" / "kilobyte").write_bytes(KILOBYTE)
    await on.offer(run, server)
    session = open_session()
    return Gateway(session, on.gateway_url, on.token_file(run)), session


async def _load(clients: list[tuple[Gateway, aiohttp.ClientSession]], calls: int, prefix: str) -> list[float]:
    """So many calls, evenly spread; the seconds each took."""
    latencies: list[float] = []

    async def caller(gateway: Gateway, number: int) -> None:
        for call in range(number, calls, RUNS * CALLERS_PER_RUN):
            begun = perf_counter()
            result = await gateway.call(ToolUse(f"tc_{prefix}_{call}", *READ))
            latencies.append(perf_counter() - begun)
            assert result.outcome == "ok", result

    async with asyncio.TaskGroup() as group:
        for number in range(RUNS * CALLERS_PER_RUN):
            group.create_task(caller(clients[number % RUNS][0], number))
    return latencies
