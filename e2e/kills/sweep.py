"""Every point, any number of seeds, one run each, and the counts.

First undisturbed runs tell how often each failpoint is come by; a seed then chooses at which time. What dies with a
harness or a sandbox is one run's alone, so several of these are played at once; gateways and operator are everybody's.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from e2e.installation import SYSTEM
from e2e.kills import acts
from e2e.kills.acts import Outcome
from e2e.kills.figures import WORKERS, medians, seconds_to_next
from e2e.kills.play import Run, run
from e2e.kills.points import FAILPOINTS, alone, role, run_name, seeded, telling_run_name
from e2e.kills.stage import Stage
from e2e.kubectl import Object
from tests.durability.clients import acknowledged, told
from tests.durability.verdict import Case, Tally, Verdict
from towline.testing.checker import Violation

Hits = dict[str, int]
"""Failpoint → how often it is come by."""


@dataclass
class Kills:
    """What was counted."""

    tally: Tally
    to_next: dict[str, list[float]] = field(default_factory=dict)
    """Role → seconds from each kill to the run's next event."""
    to_work: dict[str, list[float]] = field(default_factory=dict)
    """…to the next one of its harness or gateway."""

    tell: bool = False
    """Print what each run did, also when nothing is wrong."""

    def add(self, case: Case, outcome: Outcome, seconds: float) -> None:
        reached = outcome.killed_at is not None
        story = outcome.story if outcome.violations or not reached else ""
        self.tally.add(Verdict(case, outcome.told, reached, outcome.violations, seconds, story))
        if outcome.killed_at is None:
            return
        who = role(case.point)
        for waits, sources in ((self.to_next, ()), (self.to_work, WORKERS)):
            if (took := seconds_to_next(outcome.log, outcome.killed_at, sources)) is not None:
                waits.setdefault(who, []).append(took)
        at = outcome.killed_at.strftime("%H:%M:%S.%f")[:-3]
        print(f"{case.point} seed {case.seed} ({outcome.told}): killed at {at}, {seconds:.0f} s", flush=True)
        if self.tell and not outcome.violations:
            print(outcome.story, flush=True)

    def line(self) -> str:
        return (
            f"{self.tally.line()}, median seconds from kill to the next event {medians(self.to_next)}, "
            f"to the next one of harness or gateway {medians(self.to_work)}"
        )


async def explore(stage: Stage, points: Sequence[str]) -> Hits:
    """How often an undisturbed run comes by each failpoint; the operator, one whose first harness dies."""
    hits: Hits = {}
    roles = {role(point) for point in points if point in FAILPOINTS}
    tag = secrets.token_hex(3)
    if roles & set(WORKERS):
        async with AsyncExitStack() as armed:
            gateway = await armed.enter_async_context(stage.armed("gateway", "tell"))
            armed.push_async_callback(stage.lead_to_all_gateways)
            await stage.lead_to_armed_gateway()
            async with run(stage, telling_run_name(tag), "quick") as it:
                await _undisturbed(it)
                hits |= Counter(told(b"\n".join(it.traces.log_lines())))
            hits |= Counter(told(await _log(stage, gateway)))
    if "operator" in roles:
        async with stage.armed_operator("tell") as operator:
            async with run(stage, run_name("harness.call.after", 1, tag), "quick") as it:
                await _undisturbed(it)
            hits |= Counter(told(await _log(stage, operator)))
    return hits


async def _undisturbed(it: Run) -> None:
    if violations := [*await it.ended(), *await it.removed()]:
        raise AssertionError(f"undisturbed: {[str(each) for each in violations]}\n{it.story()}")
    if not set(acknowledged(it.traces.log_lines())):
        raise AssertionError("the harnesses' logs do not tell what is in the run's log")


async def _log(stage: Stage, pod: Object) -> bytes:
    return (await stage.kubectl("logs", pod["metadata"]["name"], f"--namespace={SYSTEM}")).encode()


async def play(stage: Stage, case: Case, hits: Hits) -> Outcome:
    """One case: the same point and seed are the same moment again, as far as a cluster repeats itself."""
    tag = f"{case.seed}-{secrets.token_hex(2)}"
    if case.point not in FAILPOINTS:
        return await acts.from_outside(stage, case.point, case.seed, tag)
    if not hits.get(case.point):
        return Outcome("no run comes by")
    hit = seeded(case.point, case.seed).randint(1, hits[case.point])
    by_role = {
        "harness": acts.harness_failpoint,
        "gateway": acts.gateway_failpoint,
        "operator": acts.operator_failpoint,
    }
    return await by_role[role(case.point)](stage, case.point, hit, tag)


async def sweep(stage: Stage, points: Sequence[str], seeds: int, jobs: int, *, tell: bool = False) -> Kills:
    kills = Kills(Tally(len(points)), tell=tell)
    hits = await explore(stage, points)
    passes = {point: hits.get(point, 0) for point in points if point in FAILPOINTS}
    print(f"passes of an undisturbed run: {passes}", flush=True)
    cases = [Case(point, seed) for seed in range(1, seeds + 1) for point in points]
    together = iter([case for case in cases if not alone(case.point)])

    async def work(chosen: Iterable[Case]) -> None:
        for case in chosen:
            begin = time.monotonic()
            try:
                outcome = await play(stage, case, hits)
            except Exception as fault:  # one case that cannot be played does not end the others
                outcome = Outcome("", violations=[Violation("terminal", f"not played: {fault!r}")])
            kills.add(case, outcome, time.monotonic() - begin)

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(work(together))
    await work([case for case in cases if alone(case.point)])
    return kills
