"""Runs by the dozen while their store is killed again and again: `make redis-chaos MINUTES=n`.

Every 5 to 40 s the Valkey of all runs is killed by SIGKILL and is away for up to 2 s. It keeps an append-only file that
is synced once a second, so a killed process loses nothing on a disk that keeps up; what it loses on another is put back
by its writers. Failovers are tested in tests/redis and tests/local. The last line is the counts, the exit code
the verdict.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.durability.rig import Rig, Run
from tests.durability.scenarios import POLICY, SCRIPTED, SLOW, WORDS, executes, says
from towline.sandbox.bundle import build_bundle
from towline.settings import LocalSettings, read
from towline.testing.checker import Violation, check

LEAST_SECONDS, MOST_SECONDS = 5.0, 40.0
AWAY_SECONDS = 2.0
STEPS = 24


@dataclass
class Chaos:
    """What was counted."""

    runs: int = 0
    events: int = 0
    restarts: int = 0
    violations: list[Violation] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def good(self) -> bool:
        return not self.violations

    def line(self) -> str:
        found = Counter(violation.kind for violation in self.violations)
        counts = {
            "runs": self.runs,
            "events": self.events,
            "restarts": self.restarts,
            "lost": found["lost"],
            "duplicated": found["duplicated"],
            "out of order": found["out of order"],
            "double executions": found["executed twice"],
            "terminals wrong": found["terminal"],
            "others": found["result"] + found["history"] + found["prompt"],
            "seconds": round(time.monotonic() - self.began),
        }
        return ", ".join(f"{name} {count}" for name, count in counts.items())


def long_run() -> tuple[dict[str, Any], list[str]]:
    """A run of some minutes' worth of moments at which its store may vanish, and the words that it leaves behind."""
    words = [f"w{number}" for number in range(STEPS)]
    steps = [
        says(WORDS, executes(word, then=SLOW if number % 3 else ""), pause=40) for number, word in enumerate(words)
    ]
    model = {**SCRIPTED, "script": [*steps, says("Done."), *(says(f"Answer {number}.") for number in range(3))]}
    return {"model": model, "tools": ["exec"], "policy": POLICY}, words


async def chaos(
    cache: Path, seconds: float, *, at_once: int = 20, scale: float = 1.0, seed: int = 1, folder: Path | None = None
) -> Chaos:
    """`scale` shortens the times between two kills, for tests."""
    bundle = await asyncio.to_thread(build_bundle, cache)
    count, random = Chaos(), Random(seed)
    over = asyncio.Event()
    async with Rig(bundle, folder=folder) as rig:

        async def keep_killing() -> None:
            while not over.is_set():
                try:
                    pause = random.uniform(LEAST_SECONDS, MOST_SECONDS) * scale
                    await asyncio.wait_for(over.wait(), pause)
                except TimeoutError:
                    rig.valkey.kill()
                    await rig.valkey.exited.wait()
                    await asyncio.sleep(random.uniform(0, AWAY_SECONDS) * scale)
                    await rig.start_valkey()
                    count.restarts += 1

        async def clients(run: Run) -> None:
            for number in range(3):
                await run.until("agent.tool_result", 3 + number * 5)
                await run.post(f"Question {number}.", key=f"k{number}")
                await run.post(f"Question {number}.", key=f"k{number}")

        async def keep_running() -> None:
            while time.monotonic() - count.began < seconds:
                given, words = long_run()
                run = Run(rig, given, words, patience_seconds=600)
                try:
                    recorded = await run.play(clients)
                except Exception as fault:
                    found = [Violation("terminal", f"the run did not come to its end: {fault!r}")]
                else:
                    found = check(recorded)
                    count.events += len(recorded.log)
                    if recorded.log[-1].type != "run.completed":
                        found.append(Violation("terminal", f"{recorded.log[-1].type}: {recorded.log[-1].data!r}"))
                count.runs += 1
                count.violations += found
                for violation in found:
                    print(f"VIOLATED run {run.uid}: {violation}", flush=True)
                if found:
                    print(run.story(), flush=True)

        killing = asyncio.create_task(keep_killing())
        try:
            await asyncio.gather(*(keep_running() for _ in range(at_once)))
        finally:
            over.set()
            await killing
    return count


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--runs", type=int, default=20, help="how many at once")
    given = parser.parse_args()
    cache = read(LocalSettings).cache_home.expanduser() / "towline"
    count = asyncio.run(chaos(cache, given.minutes * 60, at_once=given.runs))
    print(count.line())
    return 0 if count.good else 1


if __name__ == "__main__":
    sys.exit(main())
