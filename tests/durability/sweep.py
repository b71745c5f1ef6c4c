"""The kill sweep: every failpoint, any number of seeds, one real run each, judged by the checker.

`make kill-sweep SEEDS=n [POINTS=glob] [JOBS=n]`. The last line is the counts, the exit code the verdict: 0 when nothing
was violated and every point was reached at least once. A seed names scenario, process and hit, so a violation can be
looked at again by its point and seed.
"""

import argparse
import asyncio
import fnmatch
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol

from tests.durability.operator_stand import operator_stand
from tests.durability.rig import Arms, Rig, Run
from tests.durability.scenarios import SCENARIOS, Scenario
from tests.durability.verdict import Case, Tally, Verdict, Way, armed_by
from towline.failpoints import POINTS
from towline.sandbox.bundle import Bundle, build_bundle
from towline.settings import LocalSettings, read
from towline.testing.checker import Violation, check

TELL = ("tell",) * 6


class Stand(Protocol):
    """Where cases are played, one at a time."""

    async def play(self, case: Case) -> Verdict: ...


@dataclass
class LocalStand:
    """Harness and gateway points, on a rig of its own."""

    rig: Rig
    ways: dict[str, list[Way]]

    async def play(self, case: Case) -> Verdict:
        random = Random(f"{case.point}:{case.seed}")
        way = random.choice(self.ways[case.point])
        armed = armed_by(case, way, random)
        scenario = next(each for each in SCENARIOS if each.name == way.scenario)
        role = case.point.partition(".")[0]
        arms = armed_at(scenario, role, way.number, armed)
        began = time.monotonic()
        async with scenario.snapshot(self.rig) as given:
            run = Run(self.rig, given, scenario.orders, arms)
            violations: list[Violation] = []
            try:
                recorded = await run.play(scenario.act)
            except Exception as fault:
                violations.append(Violation("terminal", f"the run did not come to its end: {fault!r}"))
            else:
                violations += check(recorded)
                if recorded.log and recorded.log[-1].type != scenario.ends:
                    violations.append(Violation("terminal", f"{recorded.log[-1].type}, expected {scenario.ends}"))
        told = f"{scenario.name}, {role} {way.number}, {armed}"
        reached = run.ended_by_kill(role, way.number)
        return Verdict(
            case, told, reached, violations, time.monotonic() - began, run.story() if violations or not reached else ""
        )


def armed_at(scenario: Scenario, role: str, number: int, armed: str) -> Arms:
    """The scenario's own deaths, and one more."""
    first: tuple[str, ...] = getattr(scenario.first, role)
    before = (*first, *[""] * number)[: number - 1]
    return replace(scenario.first, **{role: (*before, armed)})


async def explore(rig: Rig, scenario: Scenario) -> dict[str, list[Way]]:
    """Which points an undisturbed run of the scenario comes by."""
    arms = Arms((*scenario.first.harness, *TELL), (*scenario.first.gateway, *TELL))
    async with scenario.snapshot(rig) as given:
        run = Run(rig, given, scenario.orders, arms)
        recorded = await run.play(scenario.act)
    if (violations := check(recorded)) or recorded.log[-1].type != scenario.ends:
        raise AssertionError(f"{scenario.name}, undisturbed: {[str(each) for each in violations]}\n{run.story()}")
    ways: dict[str, list[Way]] = {}
    for role in ("harness", "gateway"):
        for number in range(1, len(TELL) + 1):
            for point, passes in Counter(run.passed(role, number)).items():
                ways.setdefault(point, []).append(Way(scenario.name, number, passes))
    return ways


def cases_of(
    points: Sequence[str], seeds: int, ways: Mapping[str, Sequence[Way]], tally: Tally
) -> "asyncio.Queue[Case]":
    """A point that nothing comes by is never reached, and told as such."""
    cases: asyncio.Queue[Case] = asyncio.Queue()
    for point in points:
        if point not in ways:
            tally.add(Verdict(Case(point, 1), "nothing comes by", False, (), 0.0))
    for seed in range(1, seeds + 1):
        for point in points:
            if point in ways:
                cases.put_nowait(Case(point, seed))
    return cases


async def work(stand: Stand, cases: "asyncio.Queue[Case]", tally: Tally) -> None:
    while not cases.empty():
        case = cases.get_nowait()
        verdict = await stand.play(case)
        tally.add(verdict)
        if not verdict.reached:
            tally.add(await stand.play(replace(case, first=True)))


async def local_sweep(points: Sequence[str], seeds: int, jobs: int, bundle: Bundle, tally: Tally) -> None:
    """Explores first, since a point is armed where it is known to be reached."""
    ways: dict[str, list[Way]] = {}
    scenarios: asyncio.Queue[Scenario] = asyncio.Queue()
    for scenario in SCENARIOS:
        scenarios.put_nowait(scenario)
    cases: asyncio.Queue[Case] = asyncio.Queue()
    barrier = asyncio.Barrier(jobs)

    def fill() -> None:
        nonlocal cases
        for found in ways.values():
            found.sort(key=lambda way: (way.scenario, way.number))  # a seed means the same in each sweep
        cases = cases_of(points, seeds, ways, tally)
        print(f"{len(ways)} points on the way of {len(SCENARIOS)} scenarios; {cases.qsize()} runs to come", flush=True)

    async def job() -> None:
        async with Rig(bundle) as rig:
            while not scenarios.empty():
                for point, found in (await explore(rig, scenarios.get_nowait())).items():
                    ways.setdefault(point, []).extend(found)
            if await barrier.wait() == 0:
                fill()
            await barrier.wait()
            await work(LocalStand(rig, ways), cases, tally)

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(job())


async def operator_sweep(points: Sequence[str], seeds: int, tally: Tally) -> None:
    """One case at a time: an operator looks at all runs of its cluster."""
    async with operator_stand() as stand:
        await stand.explore()
        cases = cases_of(points, seeds, stand.ways, tally)
        print(f"{len(stand.ways)} points of the operator; {cases.qsize()} runs to come", flush=True)
        await work(stand, cases, tally)


async def sweep(points: Sequence[str], seeds: int, jobs: int) -> Tally:
    tally = Tally(len(points))
    here = [point for point in points if not point.startswith("operator.")]
    if here:
        cache = read(LocalSettings).cache_home.expanduser() / "towline"
        bundle = await asyncio.to_thread(build_bundle, Path(cache))
        await local_sweep(here, seeds, jobs, bundle, tally)
    if there := [point for point in points if point.startswith("operator.")]:
        try:
            await operator_sweep(there, seeds, tally)
        except RuntimeError as missing:
            if os.environ.get("CI"):
                raise
            print(f"NOT SWEPT: {len(there)} points of the operator: {missing}")
            tally.points -= len(there)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.sweep", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--points", default="*", help="a glob over the names, e.g. 'gateway.*'")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    points = [point for point in POINTS if fnmatch.fnmatch(point, given.points)]
    if not points:
        parser.error(f"no point matches {given.points!r}")
    tally = asyncio.run(sweep(points, given.seeds, given.jobs))
    for point in tally.never_reached:
        print(f"never reached: {point}")
    print(tally.line())
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
