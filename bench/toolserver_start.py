"""The tool server from its bundle: how soon it answers, what it weighs, and what 2 GB of output do to it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from time import perf_counter

from bench.figure import Figure, Goal, median
from bench.proc import memory_mb
from bench.stage import Stage, ToolServer, stage
from towline.errors import SandboxFailed
from towline.gateway.sandbox_client import SandboxClient

OUTPUT_BYTES = 2_000_000_000
OUTPUT_SECONDS = 120


async def measure(quick: bool) -> AsyncIterator[Figure]:
    repeats = 2 if quick else 7
    seconds, resident, bare = [], [], []
    async with stage() as on:
        bundle = await on.bundle()
        for repeat in range(repeats + 1):
            begun = perf_counter()
            child = on.start(f"python-{repeat}", [sys.executable, "-I", "-S", "-c", "pass"], {"PATH": "/usr/bin:/bin"})
            await child.exited.wait()
            bare.append(perf_counter() - begun)
            run = await on.new_run()
            begun = perf_counter()
            server = await on.start_tool_server(run)
            seconds.append(perf_counter() - begun)
            assert server.process is not None
            resident.append(memory_mb(server.process.pid))
            if repeat < repeats:
                await server.process.stop(5)
        yield Figure(
            name="toolserver_start_seconds",
            value=median(seconds[1:]),
            unit="s",
            goal=Goal(0.1),
            comparison=("python_start_seconds", median(bare[1:])),
            samples=repeats,
            note=f"process start to answered hello; fastest {min(seconds[1:]):.3f}, slowest {max(seconds[1:]):.3f}",
        )
        yield Figure(
            name="toolserver_memory",
            value=median(resident[1:]),
            unit="MB",
            goal=Goal(25),
            samples=repeats,
            note="VmRSS when ready",
        )
        assert server.process is not None
        printed = OUTPUT_BYTES // (20 if quick else 1)
        took = await _print(server, printed)
        yield Figure(
            name="toolserver_memory_under_output",
            value=memory_mb(server.process.pid, "VmHWM"),
            unit="MB",
            goal=Goal(25),
            samples=1,
            note=f"VmHWM after one exec that printed {printed / 1e9:g} GB, at {printed / took / 1e6:.0f} MB/s",
        )
        files = [path for path in bundle.folder.rglob("*") if path.is_file()]
        yield Figure(
            name="toolserver_bundle_size",
            value=sum(path.stat().st_size for path in files) / 1e6,
            unit="MB",
            goal=Goal(20),
            samples=1,
            note=f"{len(files)} files, uncompressed",
        )
        try:
            sandboxes = [await _sandbox_start(on) for _ in range(repeats + 1)]
        except SandboxFailed as fault:
            print(f"  no figure for bubblewrap: {fault.reason}")
            return
        yield Figure(
            name="sandbox_start_seconds",
            value=median(sandboxes[1:]),
            unit="s",
            samples=repeats,
            note="bubblewrap around it, from the request to a tool server that answers",
        )


async def _print(server: ToolServer, count: int) -> float:
    """Have one command print so much; the seconds it took."""
    client = SandboxClient(server.name, server.endpoint, server.key)
    try:
        instance = (await client.hello()).instance
        order = {
            "tool": "exec",
            "arguments": {"command": f"yes | head -c {count}"},
            "timeout_seconds": OUTPUT_SECONDS,
        }
        begun = perf_counter()
        async with asyncio.timeout(OUTPUT_SECONDS):
            reply = await client.run(instance, "print", json.dumps(order).encode(), lambda _offset, _text: None)
        assert reply.total_bytes == count, reply
        return perf_counter() - begun
    finally:
        await client.aclose()


async def _sandbox_start(on: Stage) -> float:
    run = await on.new_run()
    begun = perf_counter()
    await on.start_sandbox(run)
    return perf_counter() - begun
