"""A store that loses acknowledged writes, as Redis does on a failover: noticed, logged, healed."""

import asyncio

import pytest

from tests.redis.losing import log_of, loss_of
from towline import inbox
from towline.events.event import draft
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.totals import Totals


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


async def test_a_writer_that_appends_nothing_more_puts_its_tail_back_all_the_same(
    store, run, harness, said, replica, monkeypatch
):
    monkeypatch.setattr("towline.events.appender._CONFIRM_SECONDS", 0.05)
    appender = harness()
    await replica.take()
    await appender.append([said("lost")])
    following = follow(store, run, 1)
    lost = await anext(following)
    await replica.promote()

    await asyncio.wait_for(loss_of(following), 60)

    assert [event.id for event in await EventLog(store, run).all()][1:] == [lost.id]


@pytest.mark.parametrize("url", ["valkey_url", "redis_url"], indirect=True)
async def test_what_the_store_has_in_safety_is_let_go(store, harness, said, monkeypatch):
    monkeypatch.setattr("towline.events.appender._CONFIRM_SECONDS", 0.05)
    monkeypatch.setattr("towline.events.appender._ALONE_SECONDS", 0.0)
    appender = harness()
    for number in range(5):
        await appender.append([said(number)])

    async with asyncio.timeout(60):
        while appender._kept:
            await asyncio.sleep(0.02)

    await appender.append([said("next")])
    assert len(appender._kept) == 1


def taken(prompt, now):
    data = {"prompt_id": prompt.id, "content": prompt.content, "delivery": prompt.delivery, "key": prompt.key}
    return draft("user.message", data, now=now)


async def test_a_taken_prompt_whose_entry_was_lost_too_is_posted_again_as_the_same(
    store, run, harness, said, replica, now
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    prompt = await inbox.post(store, run, "hello", key="k", sender="ada")
    await appender.append([taken(prompt, now)], Totals(prompts=1))
    await replica.promote()

    await appender.append([said("next")])

    assert await inbox.post(store, run, "hello", key="k", sender="ada") == prompt
    assert (await EventLog(store, run).state()).unread == 0
    await appender.finish(draft("run.completed", {}, now=now), seen_prompt=1)
    assert (await inbox.wait_for_reply(store, run, prompt.id)).ended is not None


async def test_a_prompt_posted_before_its_lost_predecessor_was_put_back_gets_a_number_of_its_own(
    store, run, harness, said, replica, now
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    first = await inbox.post(store, run, "hello", key="k1")
    await appender.append([taken(first, now)], Totals(prompts=1))
    await replica.promote()
    await inbox.post(store, run, "another", key="k2")

    await appender.append([said("next")])

    assert (await inbox.post(store, run, "hello", key="k1")).id == "1-0"
    assert (await inbox.post(store, run, "another", key="k2")).id == "2-0"
    assert [prompt.content for prompt in await inbox.read_after(store, run, "1-0")] == ["another"]
    assert (await EventLog(store, run).state()).unread == 1
