"""Takeovers of a harness that is not dead but paused: whatever it does when it wakes, it changes nothing.

`python -m tests.durability.takeovers --processes n --writers n`. The first are real harness processes, stopped by
SIGSTOP at a failpoint, followed by a successor, and woken while that one works or after it is done. The second are what
such a process would do, by the thousand: appends, ends, live text and tool calls, through the library and a real
gateway, under an epoch that is over. The last line is the counts, the exit code the verdict.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.durability.rig import EFFECTS, Arms, Rig, Run
from tests.durability.scenarios import POLICY, SCENARIOS, SCRIPTED, executes
from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.errors import Fenced
from towline.events import live, runs
from towline.events.appender import Appender
from towline.events.event import draft
from towline.events.log import EventLog
from towline.harness.process import open_session
from towline.harness.tools import Gateway
from towline.harness.transcript import ToolUse
from towline.local.processes import Exit
from towline.sandbox.bundle import build_bundle
from towline.settings import LocalSettings, read
from towline.testing.checker import check

STOPS = (
    "harness.append.before",
    "harness.turn.before",
    "harness.model.before",
    "harness.model.after",
    "harness.answer.before",
    "harness.answer.after",
    "harness.call.before",
    "harness.call.after",
    "harness.completing.before",
    "harness.inbox.after",
    "harness.finish.before",
    "harness.connect.before",
    "harness.arrival.after",
    "harness.read.after",
    "harness.delta.before",
    "harness.model.streaming",
)
"""Where a harness is about to do something, or has just done it."""


@dataclass
class Takeovers:
    """What was counted."""

    done: int = 0
    stale_writes: int = 0
    stale_calls: int = 0
    others: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        return not (self.stale_writes or self.stale_calls or self.others)

    def line(self) -> str:
        return (
            f"takeovers {self.done}, stale writes {self.stale_writes}, stale tool calls {self.stale_calls}, "
            f"other violations {self.others}"
        )


async def of_a_process(rig: Rig, number: int, count: Takeovers) -> None:
    """One run whose first harness is paused, replaced, and woken early or late."""
    scenario = next(each for each in SCENARIOS if each.name == "tools")
    random = Random(f"takeover:{number}")
    early = random.random() < 0.5
    armed = f"{STOPS[number % len(STOPS)]}:1:stop"

    async def pause(run: Run) -> None:
        """The operator takes it for lost: a successor is started while it only sleeps."""
        paused = run.harness
        if len(run.logs) > 1 or paused is None:
            return
        await _stopped(paused.pid)
        await run.take_over(2, Exit(None, signal.SIGSTOP))
        run.harness = run.start_harness(2)
        wake.append(asyncio.create_task(_wake(run, paused.pid)))
        wake.append(asyncio.create_task(paused.exited.wait()))

    async def _wake(run: Run, pid: int) -> None:
        await run.until("harness.lost" if early else "run.completed")
        await asyncio.sleep(random.random() * 0.3)
        os.kill(pid, signal.SIGCONT)

    wake: list[asyncio.Task[object]] = []
    async with scenario.snapshot(rig) as given:
        run = Run(rig, given, scenario.orders, Arms(harness=(armed,)), on_start=pause)

        recorded = await run.play()
        await asyncio.wait_for(asyncio.gather(*wake), 30)
    count.done += 1
    began = next(event.seq for event in recorded.log if event.epoch == 2)
    late = [event for event in recorded.log if event.seq > began and event.epoch == 1]
    count.stale_writes += len(late) + len(await run.log.all()) - len(recorded.log)
    count.stale_calls += len(run.effects()) - len(recorded.effects)
    for violation in check(recorded):
        if violation.kind in ("executed twice", "duplicated"):
            count.stale_calls += 1
        else:
            count.others += 1
        print(f"VIOLATED takeover {number} ({armed}, woken {'early' if early else 'late'}): {violation}\n{run.story()}")
    told = run.logs[0].read_bytes().splitlines()
    count.ends[told[-1].decode(errors="replace")[:200].partition('"event": "')[2].partition('"')[0]] += 1


async def _stopped(pid: int) -> None:
    """Until the process stands still."""
    while _state(pid) != "T":
        await asyncio.sleep(0.01)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def of_writers(rig: Rig, number: int, count: Takeovers, *, runs_each: int = 50) -> None:
    """`number` takeovers, each with all that a stale harness could try; every try has to be refused."""
    for begun in range(0, number, runs_each):
        run = Run(rig, {"tools": ["exec"], "policy": POLICY, "model": SCRIPTED})
        names = {"namespace": "default", "name": "run", "uid": run.uid, "prompt": "Go."}
        snapshot = Snapshot.model_validate({**names, **run.given})
        await runs.create(rig.store, run.ref, snapshot.to_json(), now=utc_now())
        async with open_session() as session:
            for epoch in range(2, 2 + min(runs_each, number - begun)):
                await _one_writer(rig, run, epoch, session, count)
                count.done += 1


async def _one_writer(rig: Rig, run: Run, epoch: int, session: object, count: Takeovers) -> None:
    old = Appender(rig.store, run.ref, src="harness", epoch=epoch - 1, nonce=f"n{epoch}")
    await old.append([draft("run.status", {"phase": "Running", "reason": ""}, now=utc_now())])
    token = rig.folder / "stale-token"
    token.write_text(run.token(epoch - 1))
    await runs.append_once(rig.store, run.ref, epoch, [draft("run.status", {}, now=utc_now())], guard=f"epoch:{epoch}")
    head = (await EventLog(rig.store, run.ref).state()).head
    use = ToolUse(f"tc_{epoch}", "exec", executes(f"w{epoch}")["arguments"])
    gateway = Gateway(session, run.gateways.url, token)  # type: ignore[arg-type]
    stale = {
        "append": lambda: old.append([draft("turn.completed", {"stop_reason": "x"}, now=utc_now())]),
        "finish": lambda: old.finish(draft("run.failed", {"reason": "x", "message": ""}, now=utc_now())),
        "delta": lambda: live.push_delta(
            rig.store, run.ref, epoch=epoch - 1, delta={"kind": "text", "message_id": "m", "offset": 0, "text": "x"}
        ),
        "call": lambda: gateway.call(use),
    }
    for name, attempt in stale.items():
        try:
            await attempt()
        except Fenced:
            continue
        print(f"VIOLATED epoch {epoch}: a stale {name} was accepted")
        count.stale_calls += name == "call"
        count.stale_writes += name != "call"
    state = await EventLog(rig.store, run.ref).state()
    if state.head != head or state.totals.tool_calls or state.closed or (run.volume / "workspace" / EFFECTS).exists():
        print(f"VIOLATED epoch {epoch}: the log went from {head} to {state.head}, {state.totals}")
        count.stale_writes += 1


async def takeovers(cache: Path, processes: int, writers: int, jobs: int = 2) -> Takeovers:
    count = Takeovers()
    bundle = await asyncio.to_thread(build_bundle, cache)
    numbers = iter(range(processes))
    async with Rig(bundle) as rig, asyncio.TaskGroup() as group:

        async def work() -> None:
            for number in numbers:
                await of_a_process(rig, number, count)

        group.create_task(of_writers(rig, writers, count))
        for _ in range(jobs):
            group.create_task(work())
    return count


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.takeovers", description=__doc__)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--writers", type=int, default=1000)
    given = parser.parse_args()
    cache = read(LocalSettings).cache_home.expanduser() / "towline"
    count = asyncio.run(takeovers(cache, given.processes, given.writers))
    print(f"how the paused processes ended: {dict(count.ends)}")
    print(count.line())
    return 0 if count.good else 1


if __name__ == "__main__":
    sys.exit(main())
