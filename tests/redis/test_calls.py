"""The ledger: claimed once, dispatched once, settled once, whoever races."""

import asyncio
import json

import pytest

from towline.errors import CallMismatch, Fenced, Invalid, LogClosed, RunCancelled
from towline.events import calls, runs, sandbox
from towline.events.event import draft
from towline.events.log import EventLog


@pytest.fixture
def claim(store, run, said):
    async def claim(call_id="tc_1", *, epoch=1, name="exec", args_hash="a1", event=None):
        event = event or said(call_id, "agent.tool_use", turn=2)
        return await calls.claim(store, run, epoch=epoch, call_id=call_id, name=name, args_hash=args_hash, event=event)

    return claim


@pytest.fixture
def cancel(store, run, said):
    async def cancel(call_id="tc_1", *, epoch=1, args_hash="a1"):
        return await calls.cancel(
            *(store, run),
            epoch=epoch,
            call_id=call_id,
            name="exec",
            args_hash=args_hash,
            event=said(call_id, "agent.tool_use"),
            result=said("cancelled", "agent.tool_result"),
        )

    return cancel


@pytest.fixture
def settle(store, run, said):
    async def settle(call_id="tc_1", text="done", **options):
        event = said(text, "agent.tool_result", turn=2)
        return await calls.settle(store, run, call_id, event=event, **options)

    return settle


async def types(store, run):
    return [event.type for event in await EventLog(store, run).all()]


async def test_of_two_gateways_that_claim_one_call_one_executes_it(store, run, claim):
    answers = await asyncio.gather(*(claim() for _ in range(8)))

    assert sorted(ours for ours, _ in answers) == [False] * 7 + [True]
    assert {call.state for _, call in answers} == {"claimed"}
    assert await types(store, run) == ["agent.tool_use"]
    assert (await EventLog(store, run).state()).totals.tool_calls == 1


async def test_a_claim_whose_reply_was_lost_is_still_ours(store, run, claim, lose_replies):
    lose_replies(1)

    ours, call = await claim()

    assert (ours, call.state) == (True, "claimed")
    assert await types(store, run) == ["agent.tool_use"]


async def test_claim_and_result_are_progress_of_the_run(store, run, claim, settle):
    log = EventLog(store, run)

    await claim()
    assert (await log.state()).progress == 1
    await settle()
    assert (await log.state()).progress == 2


async def test_a_call_goes_to_one_instance_of_one_sandbox(store, run, claim):
    await claim()

    first = await calls.dispatch(store, run, "tc_1", sandbox="sandbox-1", instance="i1")
    again = await calls.dispatch(store, run, "tc_1", sandbox="sandbox-1", instance="i1")
    other = await calls.dispatch(store, run, "tc_1", sandbox="sandbox-2", instance="i2")

    assert (first.state, first.sandbox, first.instance) == ("dispatched", "sandbox-1", "i1")
    assert first == again == other


async def test_of_two_results_the_first_wins_and_the_other_learns_it(store, run, claim, settle):
    await claim()

    answers = await asyncio.gather(settle(text="one"), settle(text="two"))

    assert sorted(ours for ours, _ in answers) == [False, True]
    assert len({call.result for _, call in answers}) == 1
    assert await types(store, run) == ["agent.tool_use", "agent.tool_result"]


async def test_the_result_that_is_recorded_says_which_sandbox_the_model_was_told_of(store, run, claim, settle):
    await claim()
    await settle(new_sandbox="sandbox-2")
    await settle(new_sandbox="sandbox-3")
    await claim("tc_2")
    await settle("tc_2")

    assert (await sandbox.read(store, run)).told == "sandbox-2"


async def test_a_settled_call_is_adopted_by_the_next_claim(store, run, claim, settle):
    await claim()
    await settle(text="done")

    ours, call = await claim()

    assert (ours, call.state, call.name, call.result) == (False, "settled", "exec", b'{"on":"done"}')


async def test_a_result_is_accepted_under_a_higher_epoch_and_stamped_with_it(store, run, claim, settle, harness, said):
    await claim(epoch=1)
    await harness(epoch=2).append([said()])

    ours, _ = await settle()

    last = (await EventLog(store, run).all())[-1]
    assert (ours, last.type, last.epoch, last.src, last.turn) == (True, "agent.tool_result", 2, "gateway", 2)


async def test_a_stale_harness_can_neither_claim_nor_attach(claim, harness, said):
    await claim("tc_1", epoch=1)
    await harness(epoch=2).append([said()])

    with pytest.raises(Fenced):
        await claim("tc_2", epoch=1)
    with pytest.raises(Fenced):
        await claim("tc_1", epoch=1)


async def test_a_call_id_with_other_arguments_or_another_tool_is_refused(claim):
    await claim(args_hash="a1", name="exec")

    with pytest.raises(CallMismatch):
        await claim(args_hash="a2", name="exec")
    with pytest.raises(CallMismatch):
        await claim(args_hash="a1", name="read_file")


async def test_no_new_call_begins_once_the_run_is_being_cancelled(store, run, claim):
    await claim("tc_1")
    await runs.request_cancel(store, run, "a person asked")

    with pytest.raises(RunCancelled) as refused:
        await claim("tc_2")

    assert refused.value.reason == "a person asked"
    assert (await claim("tc_1"))[1].state == "claimed", "a known call may still be attached to"


async def test_no_new_call_begins_after_the_end(store, run, claim, now):
    await runs.finish(store, run, 1, draft("run.failed", {}, now=now))

    with pytest.raises(LogClosed):
        await claim()


async def test_finish_settles_open_calls_in_the_order_of_their_claims(store, run, claim, settle, harness, said, now):
    appender = harness()
    await appender.append([said()])
    for number in (3, 1, 2):
        await claim(f"tc_{number}", name='odd "näme"\n')
    await settle("tc_1")
    await calls.dispatch(store, run, "tc_2", sandbox="s", instance="i")
    assert [call.call_id for call in await calls.open_calls(store, run)] == ["tc_3", "tc_2"]

    seq = await appender.finish(draft("run.completed", {}, now=now))

    *_, third, second, end = await EventLog(store, run).all()
    assert (end.seq, end.type) == (seq, "run.completed")
    assert [event.payload["call_id"] for event in (third, second)] == ["tc_3", "tc_2"]
    assert third.turn == 2
    assert third.payload == {
        "call_id": "tc_3",
        "name": 'odd "näme"\n',
        "outcome": "cancelled",
        "is_error": True,
        "content": [{"type": "text", "text": "The run ended before this call did."}],
        "duration_ms": 0,
        "truncated": False,
        "total_bytes": 0,
        "exit_code": None,
    }
    assert await calls.open_calls(store, run) == []


async def test_a_result_after_the_end_goes_to_the_ledger_only(store, run, claim, settle, now):
    await claim()
    await runs.finish(store, run, 1, draft("run.cancelled", {"reason": "asked"}, now=now))
    before = await types(store, run)

    ours, call = await settle(text="late")

    assert not ours
    assert call.result is not None
    assert b'"cancelled"' in call.result
    assert await types(store, run) == before == ["agent.tool_use", "agent.tool_result", "run.cancelled"]
    assert await store.client.execute_command("HGET", run.keys.calls, "tc_1:late") == b'{"on":"late"}'


async def test_a_closed_log_takes_no_result_whatever_the_ledger_says(store, run, claim, settle):
    await claim()
    await store.client.execute_command("HSET", run.keys.meta, "closed", "run.failed")

    ours, call = await settle()

    assert (ours, call.state) == (True, "settled")
    assert await types(store, run) == ["agent.tool_use"]


async def test_what_led_to_a_result_is_appended_with_it_once(store, run, claim, settle, said):
    await claim()
    denial = said("rule", "policy.denied")

    await settle(before=[denial])
    await settle(before=[denial])

    assert await types(store, run) == ["agent.tool_use", "policy.denied", "agent.tool_result"]


async def test_a_result_for_a_call_that_was_never_claimed_is_refused(settle):
    with pytest.raises(Invalid, match="tc_9: not in the ledger"):
        await settle("tc_9")


async def test_a_large_result_is_read_back_whole_from_log_and_ledger(store, run, claim, settle):
    await claim()
    text = "x" * 200_000

    await settle(text=text)

    _, call = await claim()
    assert call.result == b'{"on":"%b"}' % text.encode()
    assert (await EventLog(store, run).all())[-1].payload == {"on": text}


@pytest.mark.parametrize("call_id", ["", "a:b", "x" * 41, 'a"b'])
async def test_a_call_id_outside_the_pattern_is_refused(claim, call_id):
    with pytest.raises(Invalid):
        await claim(call_id)


async def test_a_call_cancelled_before_its_claim_is_claimed_and_settled_at_once(store, run, claim, cancel):
    call = await cancel()

    assert (call.state, call.result) == ("settled", b'{"on":"cancelled"}')
    assert await claim() == (False, call)
    assert await types(store, run) == ["agent.tool_use", "agent.tool_result"]
    assert (await EventLog(store, run).state()).totals.tool_calls == 1


async def test_a_call_cancelled_before_its_dispatch_goes_to_no_sandbox(store, run, claim, cancel):
    await claim()

    await cancel()

    call = await calls.dispatch(store, run, "tc_1", sandbox="sandbox-1", instance="i1")
    assert (call.state, call.sandbox) == ("settled", "")
    assert await types(store, run) == ["agent.tool_use", "agent.tool_result"]


async def test_a_dispatched_call_is_only_marked_and_whoever_has_it_can_see_that(store, run, claim, cancel, settle):
    await claim()
    await claim("tc_2")
    await calls.dispatch(store, run, "tc_1", sandbox="sandbox-1", instance="i1")

    call = await cancel()

    assert (call.state, call.cancelled, call.result) == ("dispatched", True, None)
    assert await calls.unwanted(store, run, ["tc_1", "tc_2", "tc_3"]) == {"tc_1"}
    assert (await claim())[1].cancelled
    assert await settle() == (True, await cancel())


async def test_a_settled_call_keeps_its_result(store, run, claim, cancel, settle):
    await claim()
    await settle(text="done")

    assert (await cancel()).result == b'{"on":"done"}'
    assert await calls.unwanted(store, run, ["tc_1"]) == {"tc_1"}
    assert await types(store, run) == ["agent.tool_use", "agent.tool_result"]


async def test_a_cancellation_whose_reply_was_lost_is_made_once(store, run, cancel, lose_replies):
    lose_replies(1)

    assert (await cancel()).state == "settled"
    assert await types(store, run) == ["agent.tool_use", "agent.tool_result"]


async def test_a_stale_harness_cancels_nothing_and_other_arguments_are_another_call(store, run, claim, cancel):
    await claim(epoch=2)

    with pytest.raises(Fenced):
        await cancel(epoch=1)
    with pytest.raises(CallMismatch):
        await cancel(epoch=2, args_hash="a2")


async def test_of_a_run_that_ends_no_new_call_is_claimed_to_be_cancelled(store, run, claim, cancel):
    await claim("tc_0")
    await runs.request_cancel(store, run, "enough")

    with pytest.raises(RunCancelled):
        await cancel()


async def test_a_large_result_is_kept_once_and_found_all_the_same(store, run, claim, settle):
    text = "x" * 5000
    await claim()
    await settle(text=text)
    await claim("tc_2")
    await settle("tc_2", text="y" * 100_000)

    _, call = await claim()
    _, other = await claim("tc_2")

    assert json.loads(call.result) == {"on": text}
    assert json.loads(other.result) == {"on": "y" * 100_000}
    kept = await store.client.execute_command("HMGET", run.keys.calls, "tc_1:result", "tc_2:result")
    assert sum(len(each) for each in kept) < 1024


async def test_a_large_result_after_the_end_of_the_run_is_kept_in_the_ledger(store, run, claim, settle, harness, now):
    await claim()
    await harness().finish(draft("run.completed", {}, now=now))

    await settle(text="x" * 5000)

    late = await store.client.execute_command("HGET", run.keys.calls, "tc_1:late")
    assert json.loads(late) == {"on": "x" * 5000}
