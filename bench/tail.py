"""From an append to a viewer, with 1,000 runs followed on one connection; the writer is another process.

Started with arguments (`python -m bench.tail …`) this file is that writer. Both read the machine's monotonic clock, so
the time in an event is the moment before its append began.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from time import monotonic, monotonic_ns

from bench.figure import Figure, Goal, median, milliseconds, quantile
from bench.proc import cpu_seconds
from bench.stage import Stage, stage
from towline.clock import utc_now
from towline.events.appender import Appender
from towline.events.event import RunRef, draft
from towline.events.follow import follow
from towline.events.notices import Notices
from towline.events.store import Store
from towline.local.processes import python_module

RUNS = 1000
EVENTS_PER_SECOND = 500
PATIENCE_SECONDS = 30.0


async def measure(quick: bool) -> AsyncIterator[Figure]:
    runs, events = (100, 500) if quick else (RUNS, 4000)
    async with stage() as on:
        seconds, cpu_per_event = await _followed(on, [await on.new_run() for _ in range(runs)], events)
    note = (
        f"{EVENTS_PER_SECOND} events/s over {runs} runs followed on one Notices; from before the append to the event "
        f"in the reader's hand; reader CPU {milliseconds(cpu_per_event):.2f} ms an event, its polling included"
    )
    p99 = milliseconds(quantile(seconds, 0.99))
    yield Figure(
        name="append_to_tail_p50",
        value=milliseconds(median(seconds)),
        unit="ms",
        goal=Goal(1),
        samples=len(seconds),
        note=note,
    )
    yield Figure(name="append_to_tail_p99", value=p99, unit="ms", samples=len(seconds), note=note)


async def _followed(on: Stage, runs: list[RunRef], events: int) -> tuple[list[float], float]:
    """Seconds from append to viewer of each event, and CPU seconds of this process per event."""
    notices = Notices(on.store)
    seconds: list[float] = []
    all_seen = asyncio.Event()
    standing = 0
    all_standing = asyncio.Event()

    async def viewer(run: RunRef) -> None:
        nonlocal standing
        async for event in follow(on.store, run, notices=notices):
            now = monotonic_ns()
            if event.type == "run.started":
                standing += 1
                if standing == len(runs):
                    all_standing.set()
                continue
            seconds.append((now - int(event.payload["sent"])) / 1e9)
            if len(seconds) == events:
                all_seen.set()

    viewers = [asyncio.create_task(viewer(run)) for run in runs]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS + 2 * events / EVENTS_PER_SECOND):
            await all_standing.wait()
            cpu = cpu_seconds(os.getpid())
            writer = on.start(
                "writer",
                [*python_module("bench.tail"), on.url, str(events), *(run.uid for run in runs)],
                {"PYTHONPATH": ":".join(sys.path)},
            )
            await all_seen.wait()
            cpu = cpu_seconds(os.getpid()) - cpu
            await writer.exited.wait()
    finally:
        left = set(viewers)
        while left:  # on Python 3.11 a cancellation can be lost inside redis-py's wait_for
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1)
        await notices.aclose()
    return seconds, cpu / events


async def write(url: str, events: int, uids: list[str]) -> None:
    """Append at an even pace to runs chosen at random."""
    store = Store.connect(url)
    chosen = random.Random(0)
    appenders = [Appender(store, RunRef("bench", uid), src="harness", epoch=1, nonce="writer") for uid in uids]
    next_at = monotonic()
    for number in range(events):
        next_at += 1 / EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, next_at - monotonic()))
        sent = monotonic_ns()
        one = draft("agent.message_start", {"message_id": f"msg_{number:012x}", "sent": sent}, now=utc_now())
        await chosen.choice(appenders).append([one])
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
