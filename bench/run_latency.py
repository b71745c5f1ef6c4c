"""`towline run` of the examples as a person runs it, from the shell to the prompt's return. Context, without a goal."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter

from bench.figure import Figure, median
from bench.stage import Stage, stage
from towline.local.processes import python_module
from towline.settings import LocalSettings, read

EXAMPLES = Path(__file__).parents[1] / "examples"
PATIENCE_SECONDS = 60.0


async def measure(quick: bool) -> AsyncIterator[Figure]:
    repeats = 1 if quick else 3
    async with stage() as on:
        await on.bundle()
        for name, file in (("run_hello_seconds", "01-hello.yaml"), ("run_fix_a_bug_seconds", "02-fix-a-bug.yaml")):
            seconds = [await _run(on, f"{name}-{repeat}", EXAMPLES / file) for repeat in range(repeats)]
            yield Figure(
                name=name,
                value=median(seconds),
                unit="s",
                samples=repeats,
                note=f"towline run examples/{file} --json, all of it: embedded Valkey, gateway, harness, end",
            )


async def _run(on: Stage, name: str, example: Path) -> float:
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(on.held.runtime),
        "XDG_CACHE_HOME": str(read(LocalSettings).cache_home.expanduser()),
    }
    begun = perf_counter()
    child = on.start(name, [*python_module("towline.cli"), "run", str(example), "--json"], environment)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await child.exited.wait()
    assert child.exit is not None
    assert child.exit.code == 0, child.tail()
    return perf_counter() - begun
