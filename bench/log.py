"""Writing to and replaying one run's log: the real Appender and EventLog beside plain redis-py on the same server.

The plain forms know no fence, no gap-free seq, no totals and no notice; they are what an event log would cost at least.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from time import perf_counter

import redis.asyncio

from bench.figure import Figure, Goal, median, milliseconds, spread
from bench.stage import Stage, stage
from towline.clock import utc_now
from towline.events.appender import Appender
from towline.events.event import Draft, RunRef, draft
from towline.events.follow import follow
from towline.events.log import EventLog

TEXT = "x" * 120
"""Makes an entry of about 200 bytes of data and fields, like most events."""

TEN = 10


async def measure(quick: bool) -> AsyncIterator[Figure]:
    async with stage() as on:
        plain = redis.asyncio.Redis(unix_socket_path=on.url.removeprefix("unix://"))
        try:
            yield await _single(on, plain, 200 if quick else 3000)
            yield await _batches(on, plain, 100 if quick else 2000)
        finally:
            await plain.aclose()
    async with stage() as on:
        async for figure in _replay(on, 10_000 if quick else 100_000, 1 if quick else 3):
            yield figure


def drafts(count: int) -> list[Draft]:
    now = utc_now()
    return [draft("agent.message_start", {"message_id": f"msg_{n:012x}", "text": TEXT}, now=now) for n in range(count)]


def appender(on: Stage, run: RunRef) -> Appender:
    return Appender(on.store, run, src="harness", epoch=1, nonce=secrets.token_hex(8))


def plain_fields(one: Draft) -> dict[str | bytes, str | bytes | int]:
    """What an entry of ours holds."""
    return {
        "id": one.id,
        "type": one.type,
        "time": one.time,
        "src": "harness",
        "epoch": 1,
        "turn": "",
        "data": one.data,
    }


async def _single(on: Stage, plain: "redis.asyncio.Redis", count: int) -> Figure:
    """One event at a time, ours and the plain XADD in turn."""
    run = await on.new_run()
    ours = appender(on, run)
    warm_up = count // 10
    appended, added = [], []
    for one in drafts(count + warm_up):
        begun = perf_counter()
        await ours.append([one])
        between = perf_counter()
        await plain.xadd("plain", plain_fields(one))  # type: ignore[arg-type]  # invariant in its stubs
        appended.append(between - begun)
        added.append(perf_counter() - between)
    appended, added = appended[warm_up:], added[warm_up:]
    return Figure(
        name="append_p50",
        value=milliseconds(median(appended)),
        unit="ms",
        goal=Goal(0.25),
        comparison=("redis_py_xadd_p50", milliseconds(median(added))),
        samples=count,
        note=f"one event of {len(one.data)} bytes, durable as appendfsync everysec makes it; p50/p99 "
        f"{spread(appended)}, of the plain XADD {spread(added)}",
    )


async def _batches(on: Stage, plain: "redis.asyncio.Redis", batches: int) -> Figure:
    """Ten events at a time, in rounds that take turns with pipelines of ten XADDs."""
    run = await on.new_run()
    ours = appender(on, run)
    rounds = 10
    appended, added = [], []
    for _ in range(rounds + 1):
        tens = list(_in_tens(drafts(TEN * batches // rounds)))
        begun = perf_counter()
        for ten in tens:
            await ours.append(ten)
        between = perf_counter()
        for ten in tens:
            pipeline = plain.pipeline(transaction=False)
            for one in ten:
                pipeline.xadd("plain", plain_fields(one))  # type: ignore[arg-type]
            await pipeline.execute()
        appended.append(TEN * len(tens) / (between - begun))
        added.append(TEN * len(tens) / (perf_counter() - between))
    return Figure(
        name="append_batch_per_second",
        value=median(appended[1:]),
        unit="events/s",
        goal=Goal(40_000, at_least=True),
        comparison=("redis_py_pipelined_xadd_per_second", median(added[1:])),
        samples=TEN * batches,
        note=f"one writer, ten events an append; median of {rounds} rounds, after one to warm up",
    )


def _in_tens(all_drafts: list[Draft]) -> Iterator[list[Draft]]:
    for start in range(0, len(all_drafts), TEN):
        yield all_drafts[start : start + TEN]


async def _replay(on: Stage, count: int, rounds: int) -> AsyncIterator[Figure]:
    """All events of one long run, ready as values; then the same through `follow`, which is what consumers use."""
    run = await on.new_run()
    ours = appender(on, run)
    for start in range(0, count, 500):
        await ours.append(drafts(min(500, count - start)))
    log = EventLog(on.store, run)
    whole, followed, raw = [], [], []
    for _ in range(rounds):
        begun = perf_counter()
        events = await log.all()
        whole.append(len(events) / (perf_counter() - begun))
        assert len(events) == count + 1  # and run.started
        del events
        begun, seen = perf_counter(), 0
        async for _event in follow(on.store, run):
            seen += 1
            if seen == count + 1:
                break
        followed.append(seen / (perf_counter() - begun))
        raw.append(await _raw_replay(on, run, count + 1))
    note = f"one run of {count} events, in pages of 1,000"
    comparison = ("redis_py_xrange_per_second", median(raw))
    goal = Goal(100_000, at_least=True)
    yield Figure(
        name="replay_per_second",
        value=median(whole),
        unit="events/s",
        goal=goal,
        comparison=comparison,
        samples=rounds,
        note=f"EventLog.all, {note}",
    )
    yield Figure(
        name="replay_follow_per_second",
        value=median(followed),
        unit="events/s",
        goal=goal,
        comparison=comparison,
        samples=rounds,
        note=f"follow, {note}",
    )


async def _raw_replay(on: Stage, run: RunRef, count: int) -> float:
    """The same pages as redis-py gives them, with nothing made of the entries."""
    begun, seen = perf_counter(), 0
    while seen < count:
        entries = await on.store.client.execute_command("XRANGE", run.keys.log, f"{seen + 1}-0", "+", "COUNT", 1000)
        seen += len(entries)
    await asyncio.sleep(0)
    return seen / (perf_counter() - begun)
