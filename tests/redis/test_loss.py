"""A store that loses acknowledged writes, as Redis does on a failover: noticed, logged, healed."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from towline import inbox
from towline.errors import Rewound, StoreLost, StoreUnavailable
from towline.events import calls
from towline.events.adopted import Adopted
from towline.events.event import draft
from towline.events.follow import REMEMBERED, Follower, follow
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.totals import Totals
from towline.local.watch import Watch


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
        async with asyncio.timeout(60):
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


async def test_what_others_wrote_before_the_loss_was_noticed_is_told_to_be_new(store, run, harness, said, replica):
    appender, gateway = harness(), harness(src="gateway")
    await appender.append([said("kept")])
    await replica.take()
    for text in ("a", "b", "c"):
        await appender.append([said(text)])
    following = follow(store, run, poll_seconds=3600)
    seen = [await anext(following) for _ in range(4)]
    await replica.promote()
    await gateway.append([said("gateway's")])
    await appender.append([said("next")])

    loss = await asyncio.wait_for(loss_of(following), 60)

    assert loss.head == seen[0].seq, "seq 2 is another event now"


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


async def loss_of(following):
    """The Rewound that ends it."""
    with pytest.raises(Rewound) as rewound:
        [event async for event in following]
    return rewound.value


async def take(events, count):
    async for event in events:
        yield event
        count -= 1
        if not count:
            await events.aclose()
            return


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


@pytest.mark.parametrize("written_since", [0, 1, 5])
async def test_a_follower_notices_by_itself_what_the_store_lost_together_with_its_writer(
    store, run, harness, said, replica, notices, cut_subscriptions, written_since
):
    appender = harness()
    await appender.append([said("kept 1"), said("kept 2")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    following = follow(store, run, notices=notices, poll_seconds=3600)
    for _ in range(4):
        await anext(following)
    await replica.promote()
    successor = harness(epoch=2)
    for number in range(written_since):
        await successor.append([said(f"other {number}")])

    losing = asyncio.create_task(loss_of(following))
    await asyncio.sleep(0.1)
    await cut_subscriptions()  # as the death of a master does

    async with asyncio.timeout(10):
        assert (await losing).head == 2
    again = [event async for event in take(follow(store, run, 1), 2 + written_since)]
    assert [event.payload["on"] for event in again[:2]] == ["kept 1", "kept 2"]


async def test_a_follower_that_reads_more_than_it_remembers_of_another_history_notices_all_the_same(
    store, run, harness, said, replica
):
    appender = harness()
    await appender.append([said("kept 1"), said("kept 2")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    following = follow(store, run, poll_seconds=0.2)
    for _ in range(4):
        await anext(following)
    await replica.promote()
    await harness(epoch=2).append([said(number) for number in range(REMEMBERED + 3)])

    async with asyncio.timeout(30):
        assert (await loss_of(following)).head == 2


class Shown:
    """A viewer that keeps what it was shown."""

    wants_deltas = False

    def __init__(self):
        self.seqs = asyncio.Queue()
        self.texts = []

    def event(self, event):
        self.texts.append(event.payload.get("on", event.type))
        self.seqs.put_nowait(event.seq)

    def delta(self, delta):
        raise AssertionError("it wants none")

    def note(self, text):
        raise AssertionError("nobody launches anything")

    def typed(self, text):
        raise AssertionError("there is no terminal")

    async def until(self, seq):
        async with asyncio.timeout(30):
            while await self.seqs.get() != seq:
                pass


@pytest.fixture
def shown():
    return Shown()


@pytest.mark.parametrize("written_since", [0, 1, 5])
async def test_a_viewer_is_not_shown_two_histories_as_one(
    store, run, harness, said, replica, notices, cut_subscriptions, written_since, now, shown
):
    appender = harness()
    await appender.append([said("kept 1"), said("kept 2")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    watch = Watch(run, shown)
    watching = asyncio.create_task(watch.until_closed(store, notices))
    await shown.until(4)
    await replica.promote()
    successor = harness(epoch=2)
    await cut_subscriptions()  # as the death of a master does
    for number in range(written_since):
        await successor.append([said(f"other {number}")])

    async with asyncio.timeout(30):
        with pytest.raises(Rewound) as rewound:
            await watching
    assert rewound.value.head == 2

    await successor.finish(draft("run.completed", {}, now=now))
    async with asyncio.timeout(30):
        assert (await watch.until_closed(store, notices)).type == "run.completed"
    others = [f"other {number}" for number in range(written_since)]
    assert shown.texts == ["kept 1", "kept 2", "lost 1", "lost 2", *others, "run.completed"]


async def leave_and_come_back(store, watch, shown, seq, meanwhile):
    """A store that is opened anew: what happens while nobody looks is told by no notice."""
    notices = Notices(store)
    watching = asyncio.create_task(watch.until_closed(store, notices))
    await shown.until(seq)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await notices.aclose()
    await meanwhile()
    again = Notices(store)
    try:
        async with asyncio.timeout(30):
            return await watch.until_closed(store, again)
    finally:
        await again.aclose()


async def test_a_viewer_that_comes_back_is_told_of_a_loss_that_a_writer_noticed_meanwhile(
    store, run, harness, said, replica, shown
):
    appender = harness()
    await appender.append([said("kept 1"), said("kept 2")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])

    async def lose():
        await replica.promote()
        await appender.append([said("next")])

    with pytest.raises(Rewound) as rewound:
        await leave_and_come_back(store, Watch(run, shown), shown, 4, lose)

    assert (rewound.value.incarnation, rewound.value.head) == (2, 2)


@pytest.mark.parametrize("written_since", [0, 1, 2, 5])
async def test_a_viewer_that_comes_back_is_told_of_a_loss_that_no_writer_knows_of(
    store, run, harness, said, replica, shown, written_since
):
    appender = harness()
    await appender.append([said("kept 1"), said("kept 2")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])

    async def lose():
        await replica.promote()
        successor = harness(epoch=2)
        for number in range(written_since):
            await successor.append([said(f"other {number}")])

    with pytest.raises(Rewound) as rewound:
        await leave_and_come_back(store, Watch(run, shown), shown, 4, lose)

    assert rewound.value.head == 2


async def test_a_reader_that_knows_its_incarnation_is_told_of_a_loss_though_the_log_is_long_again(
    store, run, harness, said, replica
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    await replica.promote()
    await appender.append([said("next")])

    with pytest.raises(Rewound) as rewound:
        await anext(follow(store, run, 4, incarnation=1))

    assert (rewound.value.incarnation, rewound.value.head) == (2, 1)
    assert (await anext(follow(store, run, 4, incarnation=2))).seq == 4


async def test_a_follower_that_was_told_of_a_loss_goes_on_behind_what_survived(store, run, harness, said, replica):
    appender, reader = harness(), Follower(run)
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])

    async def read(count):
        async with aclosing(reader.events(store, poll_seconds=0.2)) as events:
            return [(await anext(events)).payload.get("on") for _ in range(count)]

    assert await read(3) == ["kept", "lost 1", "lost 2"]
    await replica.promote()
    await appender.append([said("next")])

    with pytest.raises(Rewound):
        await read(1)

    assert reader.next_seq == 2
    assert await read(4) == [None, "lost 1", "lost 2", "next"]
