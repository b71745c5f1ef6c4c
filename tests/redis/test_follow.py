"""Following: every event, live, without a hole, through broken connections."""

import asyncio
import contextlib

import pytest
from redis.asyncio.cluster import RedisCluster

from towline.errors import Gap, Rewound
from towline.events import live, runs, sandbox
from towline.events.event import RunRef, draft
from towline.events.follow import follow
from towline.events.notices import BROKEN, KINDS, Notices
from towline.local.watch import Watch

BOUND = 60.0


async def collect(events, count=None):
    """All events, or the first `count`."""
    found = []
    async with asyncio.timeout(BOUND), contextlib.aclosing(events):
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_a_finished_run_is_replayed_and_ends(store, run, harness, said, now):
    appender = harness()
    await appender.append([said(), said()])
    await appender.finish(draft("run.completed", {}, now=now))

    assert [event.seq for event in await collect(follow(store, run))] == [1, 2, 3]
    assert [event.seq for event in await collect(follow(store, run, 3))] == [3]
    assert await collect(follow(store, run, 4)) == [], "a viewer that saw the end and comes again is not kept waiting"


@pytest.mark.parametrize("from_seq", [4, 103])
async def test_a_viewer_from_beyond_a_finished_run_is_not_kept_waiting(
    store, run, harness, said, now, notices, from_seq
):
    appender, watch = harness(), Watch(run, viewer=None, from_seq=from_seq)
    await appender.append([said(), said()])
    await appender.finish(draft("run.completed", {}, now=now))

    async with asyncio.timeout(BOUND):
        if from_seq > 4:
            with pytest.raises(Rewound):  # there is no such event; it goes on behind what there is
                await watch.until_closed(store, notices)
        assert await watch.until_closed(store, notices) is None


async def test_a_follower_looks_when_its_connection_breaks_and_not_only_when_there_is_another(store, run, notices):
    async with notices.watch(run, breaks=True) as watch, notices.watch(run) as other:
        notices._pause = BOUND * 2
        await notices._connection.disconnect()

        assert await watch.wait(BOUND) == {BROKEN}
        assert await other.wait(0.05) == set()


async def test_events_arrive_while_they_are_written(store, run, harness, said, now, notices):
    appender, seen = harness(), asyncio.Queue()

    async def view():
        async for event in follow(store, run, notices=notices, poll_seconds=BOUND):
            await seen.put(event.seq)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(view())
        for number in range(1, 6):
            await appender.append([said()])
            async with asyncio.timeout(BOUND / 2):
                assert await seen.get() == number
        await appender.finish(draft("run.completed", {}, now=now))


async def test_one_connection_serves_many_followers(store, run, said, harness, now, notices):
    others = [RunRef(run.namespace, f"{run.uid}-{number}") for number in range(50)]
    followers = [
        asyncio.create_task(collect(follow(store, other, notices=notices, poll_seconds=BOUND)))
        for other in others
        for _ in range(2)
    ]
    for other in others:
        await runs.create(store, other, b"{}", now=now)
        await runs.finish(store, other, 1, draft("run.completed", {}, now=now))

    results = await asyncio.gather(*followers)

    assert {tuple(event.type for event in events) for events in results} == {("run.started", "run.completed")}


async def test_a_follower_survives_its_subscription_being_cut(store, run, harness, said, notices, cut_subscriptions):
    appender = harness()
    events = follow(store, run, notices=notices, poll_seconds=BOUND * 2)
    async with asyncio.timeout(BOUND), contextlib.aclosing(events):
        for number in range(1, 6):
            await appender.append([said()])
            assert (await anext(events)).seq == number
            following = asyncio.create_task(anext(events))
            await cut_subscriptions()
            await appender.append([said()])
            assert (await following).seq == number + 1, "found before the poll, though its notice was lost"
            break


async def test_a_lost_notice_costs_no_more_than_the_poll(store, run, harness, said, notices):
    appender = harness()
    await appender.append([said()])
    events = follow(store, run, notices=notices, poll_seconds=0.1)
    async with asyncio.timeout(BOUND), contextlib.aclosing(events):
        await anext(events)
        following = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        await store.client.execute_command(  # written by somebody who publishes nothing
            "XADD", run.keys.log, "2-0", "id", said().id, "type", "x.y", "time", "", "src", "a", "epoch", 1, "turn", "",
            "data", "{}",
        )  # fmt: skip
        await store.client.execute_command("HSET", run.keys.meta, "head", 2)
        assert (await following).seq == 2


async def test_a_log_trimmed_in_front_of_a_slow_follower_is_a_gap(store, run, harness, said):
    appender = harness()
    await appender.append([said() for _ in range(3)])
    events = follow(store, run, poll_seconds=0.1)
    for _ in range(3):
        await anext(events)
    await appender.append([said() for _ in range(5)])
    await store.client.execute_command("XTRIM", run.keys.log, "MINID", "7-0")

    with pytest.raises(Gap) as gap:
        await anext(events)

    assert (gap.value.from_seq, gap.value.first_available) == (4, 7)


async def test_a_follower_that_must_not_end_sees_what_would_come_after_the_end(store, run, harness, now):
    await harness().finish(draft("run.completed", {}, now=now))
    events = follow(store, run, stop_at_end=False, poll_seconds=0.05)

    async with contextlib.aclosing(events):
        assert (await anext(events)).terminal
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(events)


async def test_each_change_wakes_with_its_kind(store, run, harness, said, now, notices):
    async with notices.watch(run) as watch:
        await harness().append([said()])
        assert await watch.wait(BOUND) == {"log"}
        await live.push_delta(store, run, epoch=1, delta={"kind": "text", "message_id": "m", "offset": 0, "text": "x"})
        assert await watch.wait(BOUND) == {"live"}
        await runs.request_cancel(store, run, "asked")
        assert await watch.wait(BOUND) == {"cancel"}
        await sandbox.mark_deleted(store, run, 1, "none", now=now)
        heard: set[str] = set()
        async with asyncio.timeout(BOUND):
            while heard != {"log", "sandbox"}:  # two notices, which may come in one wait or in two
                heard |= await watch.wait(BOUND)


async def test_a_wake_up_between_two_waits_is_kept(store, run, harness, said, notices):
    async with notices.watch(run) as watch, notices.watch(run) as other:
        await harness().append([said()])
        assert await other.wait(BOUND) == {"log"}

        assert await watch.wait(BOUND) == {"log"}
        assert await watch.wait(0.05) == set()


async def test_a_cut_connection_wakes_everybody_with_every_kind(store, run, notices, cut_subscriptions):
    async with notices.watch(run) as watch:
        await cut_subscriptions()

        assert await watch.wait(BOUND) == KINDS


async def test_a_quiet_connection_is_kept(store, run, harness, said):
    notices = Notices(store, silence_seconds=1.5)
    async with notices.watch(run) as watch:
        assert await watch.wait(4) == set(), "it would have been woken by a new connection"

        await harness().append([said()])
        assert await watch.wait(BOUND) == {"log"}
    await notices.aclose()


async def test_a_closed_watch_unsubscribes(store, run, harness, said, notices):
    async def subscribers():
        counts = await store.client.execute_command("PUBLISH", run.keys.notify, "log:0")
        return int(counts)

    stay = RunRef(run.namespace, run.uid + "-2")
    async with notices.watch(stay), notices.watch(run):
        pass
    async with notices.watch(RunRef(run.namespace, run.uid + "-3")):
        pass  # commands of one connection are in order: the unsubscription is behind us

    if not isinstance(store.client, RedisCluster):  # where PUBLISH counts the subscribers of its own node only
        assert await subscribers() == 0
    assert notices._channels == {}
