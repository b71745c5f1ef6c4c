"""From the start of a harness process to its first model request, and what it weighs at that moment.

A model server in this process notes when the request has arrived; the gateway runs already, and the harness has asked
it for the tools. The comparison is the bare interpreter, started in turn with it.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from time import perf_counter

from bench.figure import Figure, Goal, median
from bench.proc import memory_mb
from bench.stage import Stage, stage
from towline.api.snapshot import Model, ScriptedStep
from towline.local.processes import Child
from towline.testing.scripted_server import RecordedRequest, ScriptedServer

PATIENCE_SECONDS = 30.0


class Arrivals(list[RecordedRequest]):
    """The server's record of requests, which also takes the time and wakes whoever waits for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self.arrived = asyncio.Event()

    def append(self, request: RecordedRequest) -> None:
        self.at = perf_counter()
        self.arrived.set()
        super().append(request)


async def measure(quick: bool) -> AsyncIterator[Figure]:
    repeats = 2 if quick else 7
    seconds, resident, peak, bare = [], [], [], []
    async with ScriptedServer([ScriptedStep(text="Hello.", chunk_milliseconds=200)]) as server, stage() as on:
        await on.start_gateway()
        server.requests = arrivals = Arrivals()
        model = Model(api="AnthropicMessages", provider="scripted", name="scripted", base_url=server.url)
        for repeat in range(repeats + 1):  # the first compiles bytecode and warms the page cache
            bare.append(await _interpreter_start(on, repeat))
            took, child = await _first_request(on, model, arrivals)
            seconds.append(took)
            resident.append(memory_mb(child.pid))
            peak.append(memory_mb(child.pid, "VmHWM"))
            await child.exited.wait()
            assert child.exit is not None
            assert child.exit.code == 0, child.tail()
    yield Figure(
        name="harness_start_seconds",
        value=median(seconds[1:]),
        unit="s",
        goal=Goal(0.5),
        comparison=("python_start_seconds", median(bare[1:])),
        samples=repeats,
        note=f"process start to first model request; fastest {min(seconds[1:]):.2f}, slowest {max(seconds[1:]):.2f}",
    )
    yield Figure(
        name="harness_memory",
        value=median(resident[1:]),
        unit="MB",
        goal=Goal(60),
        samples=repeats,
        note="VmRSS at the first model request",
    )
    yield Figure(
        name="harness_memory_peak", value=median(peak[1:]), unit="MB", samples=repeats, note="VmHWM at that moment"
    )


async def _first_request(on: Stage, model: Model, arrivals: Arrivals) -> tuple[float, Child]:
    run = await on.new_run(model)
    arrivals.arrived.clear()
    begun = perf_counter()
    child = on.start_harness(run)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await arrivals.arrived.wait()
    return arrivals.at - begun, child


async def _interpreter_start(on: Stage, number: int) -> float:
    """A Python that does nothing, from its start to its end."""
    begun = perf_counter()
    child = on.start(f"python-{number}", [sys.executable, "-P", "-c", "pass"], {"PATH": "/usr/bin:/bin"})
    await child.exited.wait()
    return perf_counter() - begun
