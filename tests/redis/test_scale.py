"""Many readers: few connections, next to no work while nothing happens, and nobody in the way of trimming."""

import asyncio
import contextlib
import random

import pytest

from towline.errors import Gap
from towline.events import runs
from towline.events.event import RunRef, draft
from towline.events.follow import follow
from towline.events.groups import Group
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store

single = pytest.mark.parametrize("url", ["valkey_url"], indirect=True)


@contextlib.asynccontextmanager
async def readers(url: str, connections: int):
    """A store and notices, as a consumer process opens them."""
    store = Store.connect(url, connections=connections)
    notices = Notices(store)
    yield store, notices
    await notices.aclose()
    await store.aclose()


async def connected(store) -> int:
    """Connections of clients at the server, but for the one that asks."""
    return len((await store.client.execute_command("CLIENT", "LIST")).splitlines()) - 1


async def commands(store, name: str) -> int:
    """How often the server has executed a command."""
    stats = await store.client.execute_command("INFO", "commandstats")
    one = stats.get(f"cmdstat_{name}", {"calls": 0}) if isinstance(stats, dict) else {"calls": 0}
    return int(one["calls"])


async def heads(events, count):
    found = []
    async with contextlib.aclosing(events):
        async for event in events:
            found.append(event.seq)
            if len(found) == count:
                break
    return found


@single
async def test_twenty_viewers_of_a_run_share_three_connections(url, store, run, harness, said):
    appender = harness()
    await appender.append([said()])
    before = await connected(store)
    async with readers(url, connections=2) as (own, notices):
        viewers = [asyncio.create_task(heads(follow(own, run, notices=notices), 51)) for _ in range(20)]
        for number in range(50):
            await appender.append([said(number)])

        assert await asyncio.gather(*viewers) == [list(range(1, 52))] * 20
        assert await connected(store) - before <= 3


@single
async def test_one_consumer_follows_a_thousand_runs_on_five_connections(url, store, run, now):
    many = [RunRef(run.namespace, f"{run.uid}-{number}", "r") for number in range(1000)]
    for each in many:
        await runs.create(store, each, b"{}", now=now)
    before = await connected(store)
    async with readers(url, connections=4) as (own, notices):
        consumers = [asyncio.create_task(heads(follow(own, each, notices=notices), 2)) for each in many]
        for each in many:
            await runs.append_once(store, each, 1, [draft("run.status", {}, now=now)], "status")

        assert await asyncio.gather(*consumers) == [[1, 2]] * 1000
        assert await connected(store) - before <= 5


@single
async def test_a_quiet_run_is_looked_at_with_one_small_read(url, store, run, harness, said):
    await harness().append([said()])
    following = follow(store, run, 1, poll_seconds=0.01)
    await anext(following)
    waiting = asyncio.create_task(anext(following))
    started = await commands(store, "hmget")
    while await commands(store, "hmget") < started + 3:
        await asyncio.sleep(0.01)

    pages, looks = await commands(store, "xrange"), await commands(store, "hmget")
    while await commands(store, "hmget") < looks + 10:
        await asyncio.sleep(0.01)

    assert await commands(store, "xrange") == pages
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_group_that_died_holds_up_no_trimming_and_is_told_what_it_missed(store, run, harness, said):
    appender = harness()
    await appender.append([said("x" * 100_000)])
    for number in range(19):
        await appender.append([said(number)])
    group = Group(store, run, "indexer", "one")
    messages = group.messages(block_ms=50)
    first = await anext(messages)  # delivered, never acknowledged: its consumer is dead
    await messages.aclose()

    await runs.trim(store, run, 15, above=10)
    await runs.trim(store, run, 15, above=1)

    with pytest.raises(Gap) as below:
        await EventLog(store, run).read(1)
    assert below.value.first_available == 15
    with pytest.raises(Gap):
        await anext(follow(store, run, 3))
    assert [event.seq for event in await EventLog(store, run).read(15)] == list(range(15, 21))
    assert not await store.client.execute_command("EXISTS", run.keys.blob(first.id)), "large data goes with its event"
    seen, gaps = [], 0
    while not seen or seen[-1] != 20:
        try:
            async for event in Group(store, run, "indexer", "one").messages(block_ms=50, claim_idle_ms=0):
                seen.append(event.seq)
                await group.ack(event)
                if event.seq == 20:
                    break
        except Gap:
            gaps += 1
    assert sorted(set(seen)) == list(range(15, 21))
    assert gaps >= 1
    assert await appender.append([said("next")]) == [21]


@single
async def test_consumers_that_are_killed_at_random_miss_nothing_and_see_what_a_replay_sees(
    url, store, run, harness, said
):
    """Two processes under one name, killed between delivery, handling and ack."""
    appender, total = harness(), 20_000
    handled: dict[int, bytes] = {}
    chance = random.Random(41)

    async def consume(name):
        own = Store.connect(url, connections=2)
        try:
            group = Group(own, run, "indexer", name)
            batch = []
            async for event in group.messages(block_ms=20, claim_idle_ms=50):
                handled[event.seq] = event.line()
                batch.append(event)
                if len(batch) == 50:
                    await group.ack(*batch)
                    batch = []
        finally:
            await own.aclose()

    async def produce():
        for start in range(0, total, 100):
            await appender.append([said(start + number) for number in range(100)])

    producing = asyncio.create_task(produce())
    consumers = [asyncio.create_task(consume(name)) for name in ("a", "a", "b")]
    async with asyncio.timeout(50):
        while len(handled) < total:
            await asyncio.sleep(chance.random() * 0.1)
            place = chance.randrange(3)
            consumers[place].cancel()
            await asyncio.wait([consumers[place]])
            consumers[place] = asyncio.create_task(consume(("a", "a", "b")[place]))
    await producing
    for each in consumers:
        each.cancel()
    await asyncio.wait(consumers)

    log = EventLog(store, run)
    replay = {event.seq: event.line() for event in await log.all()}
    assert handled == replay
