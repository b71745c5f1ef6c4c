"""A store that loses acknowledged writes: what the gateway wrote of a call, and the harness answers for."""

import asyncio
from dataclasses import replace

import pytest

from tests.redis.losing import log_of, loss_of
from towline.errors import StoreLost, StoreUnavailable
from towline.events import calls
from towline.events.adopted import Adopted
from towline.events.event import draft
from towline.events.follow import follow
from towline.events.log import EventLog


@pytest.fixture
def answered(store, run, now):
    """Makes a call as the gateway does, claimed and settled; what the harness adopts of it."""

    async def answered(call_id):
        use = draft("agent.tool_use", {"call_id": call_id}, now=now)
        result = draft("agent.tool_result", {"call_id": call_id, "content": []}, now=now)
        await calls.claim(store, run, epoch=1, call_id=call_id, name="exec", args_hash="a1", event=use)
        _, call = await calls.settle(store, run, call_id, event=result)
        return Adopted(call_id, "exec", "a1", (use, result), call.seq, call.result_seq)

    return answered


async def test_a_call_that_was_adopted_comes_back_with_its_line_in_the_ledger(
    store, run, harness, said, replica, answered, now
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("asks")])
    appender.adopt(await answered("tc_1"))
    await appender.append([said("asks again")])
    appender.adopt(await answered("tc_2"))
    before = await EventLog(store, run).all()
    await replica.promote()

    await appender.append([said("next")])

    after = await EventLog(store, run).all()
    assert [event.id for event in after] == [*(event.id for event in (before[0], after[1], *before[1:])), after[-1].id]
    assert [(event.src, event.data) for event in after[2:-1]] == [(event.src, event.data) for event in before[1:]]
    again = draft("agent.tool_use", {}, now=now)
    ours, call = await calls.claim(store, run, epoch=1, call_id="tc_1", name="exec", args_hash="a1", event=again)
    assert (ours, call.state, call.seq, call.result_seq) == (False, "settled", 4, 5)
    assert (await EventLog(store, run).state()).totals.tool_calls == 2


async def test_a_call_adopted_twice_comes_back_once(store, run, harness, said, replica, answered):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    call = await answered("tc_1")
    appender.adopt(call)
    appender.adopt(replace(call))
    await replica.promote()

    await appender.append([said("next")])

    assert await log_of(store, run) == ["asks", "store.lost", "agent.tool_use", "agent.tool_result", "next"]


async def test_a_loss_of_the_gateways_events_alone_is_noticed(store, run, harness, said, replica, answered):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    appender.adopt(await answered("tc_1"))
    await replica.promote()

    await appender.append([said("next")])

    assert await log_of(store, run) == ["asks", "store.lost", "agent.tool_use", "agent.tool_result", "next"]


async def filled_again(harness, said):
    """What others wrote after a failover, as many as the gateway's events of a call that it lost."""
    await harness(src="gateway").append([said("other"), said("another")])


async def test_a_loss_of_the_gateways_events_alone_is_noticed_though_others_have_filled_the_log_again(
    store, run, harness, said, replica, answered
):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    appender.adopt(await answered("tc_1"))
    following = follow(store, run, poll_seconds=3600)
    seen = [await anext(following) for _ in range(3)]
    await replica.promote()
    await filled_again(harness, said)

    await appender.append([said("next")])

    told = ["store.lost", "agent.tool_use", "agent.tool_result", "next"]
    assert await log_of(store, run) == ["asks", "other", "another", *told]
    assert (await asyncio.wait_for(loss_of(following), 60)).head == seen[0].seq


async def test_such_a_loss_is_noticed_at_the_end_too(store, run, harness, said, replica, answered, now):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    appender.adopt(await answered("tc_1"))
    await replica.promote()
    await filled_again(harness, said)

    await appender.finish(draft("run.completed", {}, now=now))

    assert (await log_of(store, run))[3:] == ["store.lost", "agent.tool_use", "agent.tool_result", "run.completed"]


async def test_such_a_loss_is_noticed_while_nothing_is_appended(
    store, run, harness, said, replica, answered, monkeypatch
):
    monkeypatch.setattr("towline.events.appender._CONFIRM_SECONDS", 0.05)
    monkeypatch.setattr("towline.events.appender._ALONE_SECONDS", 0.0)
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    call = await answered("tc_1")
    await replica.promote()
    await filled_again(harness, said)

    appender.adopt(call)

    async with asyncio.timeout(60):
        while len(log := await log_of(store, run)) < 6:
            await asyncio.sleep(0.02)
    assert log == ["asks", "other", "another", "store.lost", "agent.tool_use", "agent.tool_result"]


async def test_a_result_that_comes_after_the_store_lost_it_is_put_back(store, run, harness, said, replica, answered):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    call = await answered("tc_1")
    await appender.append([said("lost")])
    await replica.promote()
    await appender.append([said(text) for text in "abcd"])

    appender.adopt(call)
    await appender.append([said("next")])

    told = ["store.lost", "agent.tool_use", "agent.tool_result", "next"]
    assert await log_of(store, run) == ["asks", "store.lost", "lost", *"abcd", *told]
    assert await calls.open_calls(store, run) == []


async def test_a_repeat_of_an_append_looks_for_the_results_taken_over_since(
    store, run, harness, said, replica, answered, lose_replies
):
    appender = harness(patience_seconds=0)
    one = said("one")
    await replica.take()
    call = await answered("tc_1")
    await replica.promote()
    await filled_again(harness, said)
    lose_replies(1)
    with pytest.raises(StoreUnavailable):
        await appender.append([one])

    appender.adopt(call)
    assert await appender.append([one]) == [3]

    assert (await log_of(store, run))[2:] == ["one", "store.lost", "agent.tool_use", "agent.tool_result"]


async def test_a_call_whose_claim_survived_gets_its_result_back(store, run, harness, said, replica, now):
    appender = harness()
    await appender.append([said("asks")])
    use, result = draft("agent.tool_use", {}, now=now), draft("agent.tool_result", {"call_id": "tc_1"}, now=now)
    await calls.claim(store, run, epoch=1, call_id="tc_1", name="exec", args_hash="a1", event=use)
    await replica.take()
    _, call = await calls.settle(store, run, "tc_1", event=result)
    appender.adopt(Adopted("tc_1", "exec", "a1", (use, result), call.seq, call.result_seq))
    await replica.promote()

    await appender.append([said("next")])

    ids = [event.id for event in await EventLog(store, run).all()]
    assert (ids.count(use.id), ids.count(result.id)) == (1, 1)
    assert await calls.open_calls(store, run) == []
    assert (await EventLog(store, run).state()).totals.tool_calls == 1


async def test_a_call_that_was_asked_for_again_meanwhile_is_not_put_back(store, run, harness, said, replica, answered):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    appender.adopt(await answered("tc_1"))
    await replica.promote()
    await answered("tc_1")

    await appender.append([said("next")])

    types = [event.type for event in await EventLog(store, run).all()]
    assert types.count("agent.tool_result") == 1


async def test_a_flush_puts_everything_back_and_changes_nothing_when_nothing_is_lost(
    store, run, harness, said, replica, answered
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost")])
    appender.adopt(await answered("tc_1"))
    await appender.flush()
    assert (await EventLog(store, run).state()).head == 4
    await replica.promote()

    await appender.flush()
    await appender.flush()

    assert await log_of(store, run) == ["kept", "store.lost", "lost", "agent.tool_use", "agent.tool_result"]


async def test_a_call_is_not_logged_before_what_led_to_it(store, run, harness, said, replica, now):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("asks")])
    await replica.promote()
    claim = {"epoch": 1, "call_id": "tc_1", "name": "exec", "args_hash": "a1"}

    with pytest.raises(StoreLost):
        await calls.claim(store, run, **claim, event=draft("agent.tool_use", {}, now=now), seen=appender.seen)
    await appender.flush()
    ours, _ = await calls.claim(store, run, **claim, event=draft("agent.tool_use", {}, now=now), seen=appender.seen)

    log = await EventLog(store, run).all()
    assert ours
    assert [event.payload.get("on", event.type) for event in log] == ["kept", "store.lost", "asks", "agent.tool_use"]


async def test_a_call_is_not_logged_before_what_led_to_it_though_others_have_filled_the_log_again(
    store, run, harness, said, replica, answered, now
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    appender.adopt(await answered("tc_1"))
    await replica.promote()
    await filled_again(harness, said)
    claim = {"epoch": 1, "call_id": "tc_2", "name": "exec", "args_hash": "a1"}

    with pytest.raises(StoreLost):
        await calls.claim(store, run, **claim, event=draft("agent.tool_use", {}, now=now), seen=appender.seen)
    await appender.flush()
    await calls.claim(store, run, **claim, event=draft("agent.tool_use", {}, now=now), seen=appender.seen)

    told = ["store.lost", "agent.tool_use", "agent.tool_result", "agent.tool_use"]
    assert (await log_of(store, run))[3:] == told
    assert (await EventLog(store, run).state()).lost_head == 1


async def test_the_gateway_is_told_that_the_store_lost_its_claim_and_says_so_once(
    store, run, harness, said, replica, now
):
    appender = harness()
    await appender.append([said("asks")])
    await replica.take()
    claims = {}
    for call_id in ("tc_1", "tc_2"):
        use = draft("agent.tool_use", {}, now=now)
        _, claims[call_id] = await calls.claim(
            store, run, epoch=1, call_id=call_id, name="exec", args_hash="a1", event=use
        )
    await replica.promote()

    with pytest.raises(StoreLost):
        await calls.dispatch(store, run, "tc_1", sandbox="s", instance="i", known=claims["tc_1"])
    with pytest.raises(StoreLost):
        await calls.settle(store, run, "tc_2", event=said("done", "agent.tool_result"), known=claims["tc_2"])

    assert await log_of(store, run) == ["asks", "store.lost"]
