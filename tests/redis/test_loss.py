"""A store that loses acknowledged writes, as Redis does on a failover: noticed, logged, healed."""

import asyncio

import pytest

from towline.errors import Rewound
from towline.events.event import draft
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.totals import Totals


async def log_of(store, run):
    return [event.payload.get("on", event.type) for event in await EventLog(store, run).all()]


async def test_a_lost_tail_is_logged_and_appended_again(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")], Totals(turns=1))
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")], Totals(turns=1))
    await appender.append([said("lost 3")], Totals(turns=1))
    await replica.promote()

    assert await appender.append([said("next")], Totals(turns=1)) == [6]
    assert await appender.append([said("last")]) == [7]

    state = await EventLog(store, run).state()
    assert await log_of(store, run) == ["kept", "store.lost", "lost 1", "lost 2", "lost 3", "next", "last"]
    assert (state.incarnation, state.lost_head, state.head, state.totals.turns) == (2, 1, 7, 4)
    lost = (await EventLog(store, run).all())[1]
    assert lost.payload == {"head": 1, "acknowledged": 4, "incarnation": 2}


async def test_a_loss_is_noticed_though_others_have_filled_the_log_again(store, run, harness, said, replica):
    appender, gateway = harness(), harness(src="gateway")
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost")])
    await replica.promote()
    await gateway.append([said(number) for number in range(5)])

    await appender.append([said("next")])

    assert await log_of(store, run) == ["kept", "0", "1", "2", "3", "4", "store.lost", "lost", "next"]


async def test_a_loss_that_another_writer_noticed_is_not_logged_again(store, run, harness, said, replica):
    appender, gateway = harness(), harness(src="gateway")
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost")])
    await gateway.append([said("gateway's")])
    await replica.promote()
    await gateway.append([said("first to notice")])

    await appender.append([said("next")])

    log = await log_of(store, run)
    assert log == ["kept", "store.lost", "gateway's", "first to notice", "lost", "next"]
    assert (await EventLog(store, run).state()).incarnation == 2


async def test_two_losses_in_a_row_lose_nothing(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    for text in ("a", "b"):
        await appender.append([said(text)])
        await replica.promote()
    await appender.append([said("c")])

    log, state = await log_of(store, run), await EventLog(store, run).state()
    assert [text for text in log if text != "store.lost"] == ["kept", "a", "b", "c"]
    assert state.incarnation == 3


async def test_everything_lost_is_appended_again(store, run, harness, said):
    appender = harness()
    await appender.append([said("a")])
    await appender.append([said("b")])
    await store.client.execute_command("DEL", run.keys.log, run.keys.meta)

    await appender.append([said("c")])

    assert await log_of(store, run) == ["store.lost", "a", "b", "c"]


async def test_a_tail_lost_before_the_end_is_appended_again_before_it(store, run, harness, said, replica, now):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost")])
    await replica.promote()

    await appender.finish(draft("run.completed", {}, now=now))

    assert await log_of(store, run) == ["kept", "store.lost", "lost", "run.completed"]


async def test_a_loss_noticed_at_the_end_though_others_have_filled_the_log_again(
    store, run, harness, said, replica, now
):
    appender, gateway = harness(), harness(src="gateway")
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost")])
    await replica.promote()
    await gateway.append([said("a"), said("b")])

    await appender.finish(draft("run.completed", {}, now=now))

    assert await log_of(store, run) == ["kept", "a", "b", "store.lost", "lost", "run.completed"]


async def test_large_data_comes_back_too(store, run, harness, said, replica):
    appender, text = harness(), "x" * 100_000
    one = said(text)
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([one])
    await replica.promote()
    await store.client.execute_command("DEL", run.keys.blob(one.id))

    await appender.append([said("next")])

    assert await log_of(store, run) == ["kept", "store.lost", text, "next"]


async def test_a_follower_is_told_to_rewind(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1")])
    await appender.append([said("lost 2")])
    following = follow(store, run, poll_seconds=3600)
    seen = [await anext(following) for _ in range(3)]
    await replica.promote()
    await appender.append([said("next")])

    with pytest.raises(Rewound) as rewound:
        async with asyncio.timeout(10):
            seen.extend([event async for event in following])

    assert (rewound.value.incarnation, rewound.value.head) == (2, 1)
    again = [event async for event in take(follow(store, run, rewound.value.head + 1), 4)]
    known = {event.id for event in seen}
    assert [event.payload.get("on", event.type) for event in again] == ["store.lost", "lost 1", "lost 2", "next"]
    assert [event.id in known for event in again][1:3] == [True, True], "identity outlives the loss"


async def test_a_viewer_that_comes_back_from_beyond_the_log_is_told_to_rewind(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    await replica.promote()

    with pytest.raises(Rewound) as rewound:
        await anext(follow(store, run, 4))

    assert rewound.value.head == 1


async def test_a_follower_that_had_not_come_so_far_just_goes_on(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    following = follow(store, run, poll_seconds=0.2)
    await anext(following)
    await appender.append([said("lost")])
    await replica.promote()
    await appender.append([said("next")])

    assert [event.payload.get("on", event.type) async for event in take(following, 3)] == ["store.lost", "lost", "next"]


async def take(events, count):
    async for event in events:
        yield event
        count -= 1
        if not count:
            await events.aclose()
            return
