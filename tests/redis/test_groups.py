"""Consumer groups: at least once, whatever dies, and never a silent hole."""

import asyncio
import contextlib

import pytest

from tests.redis.conftest import free_port
from towline.errors import Gap
from towline.events import runs
from towline.events.event import RunRef, draft
from towline.events.groups import Group
from towline.events.log import EventLog
from towline.naming import feed_key

BOUND = 10.0


@pytest.fixture
def consumer(store, run):
    def consumer(name="one", target=run, **options):
        group = Group(store, target, "indexer", name)
        return group, group.messages(**{"block_ms": 20, **options})

    return consumer


async def take(messages, count, handle=None):
    events = []
    async with asyncio.timeout(BOUND):
        while len(events) < count:
            events.append(await anext(messages))
            if handle is not None:
                await handle(events[-1])
    return events


async def test_a_group_reads_a_log_from_its_first_event_and_waits_for_more(run, harness, said, consumer):
    appender = harness()
    await appender.append([said(number) for number in range(5)])
    group, messages = consumer(count=2)

    first = await take(messages, 5, group.ack)
    await appender.append([said("new")])
    [new] = await take(messages, 1)

    assert [event.seq for event in [*first, new]] == [1, 2, 3, 4, 5, 6]
    assert new.run == run


async def test_a_consumer_killed_in_the_middle_sees_every_event_once_after_dedupe(harness, said, consumer):
    await harness().append([said(number) for number in range(50)])
    handled = {}
    group, messages = consumer(count=10)
    for event in await take(messages, 17):
        handled[event.id] = event.seq
        if event.seq <= 12:
            await group.ack(event)
    await messages.aclose()  # dies with 13..17 handled but not acknowledged, 18..20 delivered and never seen

    group, messages = consumer(count=10)
    again = await take(messages, 38, group.ack)

    assert [event.seq for event in again] == list(range(13, 51))
    handled.update({event.id: event.seq for event in again})
    assert sorted(handled.values()) == list(range(1, 51))


async def test_what_a_dead_consumer_held_goes_to_another(harness, said, consumer):
    await harness().append([said(number) for number in range(6)])
    _, dead = consumer("dead", count=3)
    await take(dead, 1)
    await dead.aclose()

    group, messages = consumer("heir", claim_idle_ms=0)

    assert sorted(event.seq for event in await take(messages, 6, group.ack)) == [1, 2, 3, 4, 5, 6]


async def test_two_consumers_share_the_events(harness, said, consumer):
    await harness().append([said(number) for number in range(40)])
    (first_group, first), (second_group, second) = consumer("one", count=5), consumer("two", count=5)

    mine = await take(first, 5, first_group.ack)
    theirs = await take(second, 5, second_group.ack)

    assert not {event.seq for event in mine} & {event.seq for event in theirs}


async def test_entries_trimmed_before_they_were_read_are_a_gap_once(store, run, harness, said, consumer):
    appender = harness()
    await appender.append([said() for _ in range(3)])
    group, messages = consumer()
    await take(messages, 3, group.ack)
    await appender.append([said() for _ in range(7)])
    await store.client.execute_command("XTRIM", run.keys.log, "MINID", "8-0")

    with pytest.raises(Gap) as gap:
        await take(messages, 1)
    _, messages = consumer()
    rest = await take(messages, 3)

    assert (gap.value.from_seq, gap.value.first_available) == (4, 8)
    assert [event.seq for event in rest] == [8, 9, 10]


async def test_entries_trimmed_while_pending_are_a_gap_once(store, run, harness, said, consumer):
    await harness().append([said() for _ in range(6)])
    _, messages = consumer(count=4)
    await take(messages, 1)
    await messages.aclose()
    await store.client.execute_command("XTRIM", run.keys.log, "MINID", "4-0")

    _, messages = consumer()
    with pytest.raises(Gap) as gap:
        await take(messages, 1)
    _, messages = consumer()
    rest = await take(messages, 3)

    assert (gap.value.from_seq, gap.value.first_available) == (1, 4)
    assert [event.seq for event in rest] == [4, 5, 6]


async def test_entries_trimmed_while_pending_at_a_dead_consumer_are_a_gap(store, run, harness, said, consumer):
    await harness().append([said() for _ in range(4)])
    _, dead = consumer("dead", count=4)
    await take(dead, 1)
    await dead.aclose()
    await store.client.execute_command("XTRIM", run.keys.log, "MINID", "3-0")

    _, heir = consumer("heir", claim_idle_ms=0)
    with pytest.raises(Gap) as gap:
        await take(heir, 1)
    _, heir = consumer("heir", claim_idle_ms=0)

    assert (gap.value.from_seq, gap.value.first_available) == (1, 3)
    assert [event.seq for event in await take(heir, 2)] == [3, 4]


async def test_a_feed_tells_the_lifecycle_of_every_run_of_a_namespace(store, run, consumer, now):
    other = RunRef(run.namespace, run.uid + "-2", "other")
    for each in (run, other):
        await runs.create(store, each, b"{}", now=now)
        await runs.finish(store, each, 1, draft("run.failed", {"reason": "x", "message": ""}, now=now))
        for event in await EventLog(store, each).all():
            await runs.publish_feed(store, event)
            await runs.publish_feed(store, event)  # its writer died before it knew: at least once

    group, messages = consumer(target=feed_key(run.namespace), count=3)
    events = await take(messages, 8)
    await group.ack(*events)
    _, again = consumer(target=feed_key(run.namespace))

    unique = dict.fromkeys((event.run, event.seq, event.id, event.type) for event in events)
    assert [(ref, seq, type) for ref, seq, _, type in unique] == [
        (run, 1, "run.started"),
        (run, 2, "run.failed"),
        (other, 1, "run.started"),
        (other, 2, "run.failed"),
    ]
    await again.aclose()
    pending = await store.client.execute_command("XPENDING", feed_key(run.namespace), "indexer")
    assert (pending[0] if isinstance(pending, list) else pending["pending"]) == 0


async def test_a_feed_trimmed_in_front_of_its_reader_is_a_gap_once(store, run, consumer, harness, said):
    await harness().append([said() for _ in range(8)])
    key, events = feed_key(run.namespace), await EventLog(store, run).all()
    for event in events[:2]:
        await runs.publish_feed(store, event)
    group, messages = consumer(target=key)
    await take(messages, 2, group.ack)
    for event in events[2:]:
        await runs.publish_feed(store, event)
    await store.client.execute_command("XTRIM", key, "MAXLEN", 2)

    with pytest.raises(Gap):
        await take(messages, 1)
    _, messages = consumer(target=key)

    assert [event.seq for event in await take(messages, 2)] == [7, 8]


async def test_a_new_reader_of_a_trimmed_feed_has_missed_nothing(store, run, consumer, harness, said):
    await harness().append([said() for _ in range(4)])
    key = feed_key(run.namespace)
    for event in await EventLog(store, run).all():
        await runs.publish_feed(store, event)
    await store.client.execute_command("XTRIM", key, "MAXLEN", 2)

    _, messages = consumer(target=key)

    assert [event.seq for event in await take(messages, 2)] == [3, 4]


async def test_a_read_whose_reply_was_lost_is_made_up_for(store, harness, said, consumer, lose_replies):
    await harness().append([said() for _ in range(3)])
    group, messages = consumer()
    await take(messages, 3, group.ack)
    waiting = asyncio.create_task(take(messages, 1))
    await asyncio.sleep(0.05)
    lose_replies(1)
    await harness(epoch=2).append([said()])

    [event] = await waiting

    assert event.seq == 4
    with contextlib.suppress(StopAsyncIteration):
        await messages.aclose()


@pytest.mark.parametrize("url", ["valkey_url", "redis_url"], indirect=True)
async def test_a_consumer_outlives_a_planned_failover(store, harness, said, consumer):
    await harness().append([said()])
    group, messages = consumer(block_ms=2000)
    await take(messages, 1, group.ack)
    waiting = asyncio.create_task(take(messages, 1))
    await asyncio.sleep(0.1)

    await store.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    await store.client.execute_command("REPLICAOF", "NO", "ONE")
    await harness(epoch=2).append([said()])

    assert [event.seq for event in await waiting] == [2]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_group_that_the_store_lost_begins_anew(store, run, harness, said, consumer, waits):
    await harness().append([said() for _ in range(3)])
    group, messages = consumer(block_ms=2000)
    await take(messages, 3, group.ack)
    again = asyncio.create_task(take(messages, 4)) if waits else None
    await asyncio.sleep(0.1)

    await store.client.execute_command("XGROUP", "DESTROY", run.keys.log, "indexer")
    await harness(epoch=2).append([said()])

    assert [event.seq for event in await (again or take(messages, 4))] == [1, 2, 3, 4]


async def test_a_stream_that_the_store_lost_with_its_group_is_read_from_its_new_beginning(
    store, run, harness, said, consumer
):
    await harness().append([said() for _ in range(3)])
    _, messages = consumer(block_ms=20)
    await take(messages, 3)
    await store.client.execute_command("DEL", run.keys.log, run.keys.meta)

    await harness(epoch=2).append([said("new")])

    assert [event.payload["on"] for event in await take(messages, 1)] == ["new"]
