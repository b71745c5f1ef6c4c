"""One log, many writers: gap-free, fenced, each append once."""

import asyncio
import random

import pytest

from towline.errors import Fenced, Invalid, LogClosed, StoreUnavailable
from towline.events import calls, runs
from towline.events.event import draft
from towline.events.log import EventLog
from towline.events.totals import Totals


async def test_the_first_event_has_seq_1_and_a_batch_follows_without_gaps(store, run, harness, said):
    appender = harness()

    assert await appender.append([said("a")]) == [1]
    assert await appender.append([said("b"), said("c")]) == [2, 3]

    events = await EventLog(store, run).all()
    assert [(event.seq, event.payload["on"], event.src, event.epoch) for event in events] == [
        (1, "a", "harness", 1),
        (2, "b", "harness", 1),
        (3, "c", "harness", 1),
    ]


async def test_an_entry_reads_well_in_redis_cli(store, run, harness, said):
    one = said("ünïcode", turn=3)

    await harness(epoch=2).append([one])

    [(entry_id, fields)] = await store.client.execute_command("XRANGE", run.keys.log, "-", "+")
    assert entry_id == b"1-0"
    assert list(fields.items()) == [
        (b"id", one.id.encode()),
        (b"type", b"turn.retrying"),
        (b"time", b"2026-11-29T17:18:27.123Z"),
        (b"src", b"harness"),
        (b"epoch", b"2"),
        (b"turn", b"3"),
        (b"data", '{"on":"ünïcode"}'.encode()),
    ]


async def test_a_lower_epoch_is_refused_once_a_higher_one_has_written(store, run, harness, said):
    old, new = harness(epoch=1), harness(epoch=2)
    await old.append([said("old")])
    await new.append([said("new")])

    with pytest.raises(Fenced) as refused:
        await old.append([said("too late")])

    assert (refused.value.epoch, refused.value.current) == (1, 2)
    assert (await EventLog(store, run).state()).head == 2


async def test_a_second_process_under_the_same_epoch_is_refused(run, harness, said):
    await harness(epoch=4).append([said()])

    with pytest.raises(Fenced):
        await harness(epoch=4).append([said()])


async def test_an_append_whose_reply_was_lost_is_in_the_log_once(store, run, harness, said, lose_replies):
    appender = harness()
    await appender.append([said("a")])
    lose_replies(1)

    assert await appender.append([said("b"), said("c")], Totals(turns=1)) == [2, 3]

    state = await EventLog(store, run).state()
    assert (state.head, state.totals.turns) == (3, 1)


async def test_an_append_that_stayed_unsure_is_settled_before_the_next_one(store, run, harness, said, lose_replies):
    appender = harness(patience_seconds=0)
    lose_replies(1)
    with pytest.raises(StoreUnavailable):
        await appender.append([said("unsure")])

    assert await appender.append([said("next")]) == [2]

    assert [event.payload["on"] for event in await EventLog(store, run).all()] == ["unsure", "next"]


async def test_repeating_an_unsure_append_is_the_same_append(store, run, harness, said, lose_replies):
    appender, one = harness(patience_seconds=0), said("unsure")
    lose_replies(1)
    with pytest.raises(StoreUnavailable):
        await appender.append([one])

    assert await appender.append([one]) == [1]
    assert await appender.append([said("next")]) == [2]


async def test_a_cancelled_append_lands_exactly_once(store, run, harness, said):
    appender = harness()
    for number in range(50):
        task = asyncio.create_task(appender.append([said(number)]))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        task.cancel()
    last = await appender.append([said("last")])

    events = await EventLog(store, run).all()
    heard = [event.payload["on"] for event in events]
    started = [text for text in heard if text != "last"]
    assert len(started) == len(set(started)) >= 40, "a task cancelled before its first step appends nothing"
    assert last == [len(events)]


async def test_an_operators_append_happens_once_for_each_guard(store, run, said):
    first = await runs.append_once(store, run, 1, [said("a"), said("b")], guard="harness.lost:1")
    again = await runs.append_once(store, run, 1, [said("a"), said("b")], guard="harness.lost:1")
    other = await runs.append_once(store, run, 1, [said("c")], guard="harness.lost:2")

    assert (first, again, other) == ([1, 2], [1, 2], [3])


async def test_the_operators_append_raises_the_epoch(store, run, harness, said):
    appender = harness(epoch=1)
    await appender.append([said()])

    await runs.append_once(store, run, 2, [said()], guard="harness.lost:1")

    with pytest.raises(Fenced):
        await appender.append([said()])


async def test_a_repeated_guard_under_an_older_epoch_still_tells_the_first_seqs(store, run, harness, said):
    await runs.append_once(store, run, 1, [said()], guard="x")
    await harness(epoch=5).append([said()])

    assert await runs.append_once(store, run, 1, [said()], guard="x") == [1]
    with pytest.raises(Fenced):
        await runs.append_once(store, run, 1, [said()], guard="y")


async def test_totals_are_sums_of_what_the_appends_added(store, run, harness, said):
    appender = harness()

    await appender.append([said()], Totals(turns=1, input_tokens=10, cost_micro_usd=5))
    await appender.append([said()], Totals(turns=1, output_tokens=7, cached_input_tokens=3, cost_micro_usd=10**15))

    assert (await EventLog(store, run).state()).totals == Totals(2, 0, 10, 7, 3, 10**15 + 5)


async def test_meta_keeps_since_when_a_run_waits_and_where_it_made_progress(store, run, harness, now):
    appender, log = harness(), EventLog(store, run)

    await appender.append([draft("turn.started", {}, now=now), draft("user.message", {}, now=now)])
    await appender.append([draft("agent.message", {}, now=now), draft("harness.started", {}, now=now)])
    assert ((await log.state()).progress, (await log.state()).waiting) == (3, "")

    await appender.append([draft("turn.completed", {}, now=now), draft("turn.waiting", {}, now=now)])
    waiting = draft("turn.waiting", {}, now=now)
    assert ((await log.state()).progress, (await log.state()).waiting) == (5, waiting.time)

    await appender.append([draft("context.compacted", {}, now=now), draft("turn.started", {}, now=now)])
    assert ((await log.state()).compacted, (await log.state()).waiting) == (7, "")


async def test_creating_a_run_twice_keeps_the_first_snapshot(store, run, now):
    await runs.create(store, run, b'{"prompt":"a"}', now=now)
    await runs.create(store, run, b'{"prompt":"b"}', now=now)

    state, [started] = await EventLog(store, run).state(), await EventLog(store, run).all()
    assert await runs.load_spec(store, run) == b'{"prompt":"a"}'
    assert (state.name, state.epoch, state.incarnation, state.head, state.absent) == ("hello", 1, 1, 1, False)
    assert (started.type, started.src, started.payload["name"]) == ("run.started", "operator", "hello")


async def test_a_run_that_does_not_exist_is_absent(store, run):
    assert (await EventLog(store, run).state()).absent
    assert await EventLog(store, run).all() == []
    assert await runs.load_spec(store, run) is None


async def test_eight_writers_and_a_storm_of_takeovers_leave_no_gap_and_no_stale_event(store, run, harness, said):
    latest = 1
    written: list[tuple[int, str]] = []
    refused = 0

    async def harness_line() -> None:
        """Processes that replace one another: each writes until it is fenced by another line's next process."""
        nonlocal latest, refused
        for _ in range(8):
            latest += 1
            appender = harness(epoch=latest)
            try:
                for _ in range(random.randint(1, 12)):
                    drafts = [said() for _ in range(random.randint(1, 3))]
                    seqs = await appender.append(drafts)
                    written.extend(zip(seqs, [one.id for one in drafts], strict=True))
            except Fenced:
                refused += 1

    async def operator_line() -> None:
        nonlocal latest, refused
        for count in range(25):
            latest += count % 5 == 0
            one = said()
            try:
                [seq] = await runs.append_once(store, run, latest, [one], guard=f"{count}")
                written.append((seq, one.id))
            except Fenced:
                refused += 1

    async def gateway_line() -> None:
        nonlocal refused
        for count in range(25):
            call = {"call_id": f"tc_{count}", "name": "exec", "args_hash": "h"}
            use, result = said(type="agent.tool_use"), said(type="agent.tool_result")
            try:
                await calls.claim(store, run, epoch=latest, event=use, **call)
            except Fenced:
                refused += 1
                continue
            await calls.settle(store, run, call["call_id"], event=result)

    await asyncio.gather(*(harness_line() for _ in range(6)), operator_line(), gateway_line())

    events = await EventLog(store, run).all()
    assert refused > 10
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.id for event in events}) == len(events)
    assert sorted(written) == [(event.seq, event.id) for event in events if event.src != "gateway"]
    assert [event.epoch for event in events] == sorted(event.epoch for event in events)


async def test_finish_closes_the_log_and_a_repeat_tells_the_same_seq(store, run, harness, said, now):
    appender, end = harness(), draft("run.completed", {}, now=now)
    await appender.append([said()])

    assert await appender.finish(end) == 2
    assert await appender.finish(end) == 2

    assert (await EventLog(store, run).state()).closed == "run.completed"
    with pytest.raises(LogClosed) as refused:
        await appender.append([said()])
    assert refused.value.terminal == "run.completed"


async def test_a_log_gets_one_terminal_event_whoever_writes_it(store, run, harness, said, now):
    appender = harness(epoch=1)
    await appender.append([said()])
    await runs.finish(store, run, 2, draft("run.cancelled", {"reason": "asked"}, now=now))

    with pytest.raises((Fenced, LogClosed)):
        await appender.finish(draft("run.completed", {}, now=now))
    with pytest.raises(LogClosed):
        await runs.finish(store, run, 2, draft("run.failed", {}, now=now))

    assert [event.type for event in await EventLog(store, run).all()] == ["turn.retrying", "run.cancelled"]


async def test_a_finish_whose_reply_was_lost_is_in_the_log_once(store, run, harness, said, now, lose_replies):
    appender = harness()
    await appender.append([said()])
    lose_replies(1)

    assert await appender.finish(draft("run.completed", {}, now=now)) == 2
    assert len(await EventLog(store, run).all()) == 2


async def test_cancelling_is_heard_in_the_state_until_the_run_has_ended(store, run, harness, said, now):
    await harness().append([said()])

    assert await runs.request_cancel(store, run, "a person asked")
    assert await runs.request_cancel(store, run, "again")
    assert (await EventLog(store, run).state()).cancel == "a person asked"

    await runs.finish(store, run, 1, draft("run.cancelled", {"reason": "asked"}, now=now))
    assert not await runs.request_cancel(store, run, "too late")


async def test_a_run_that_does_not_exist_cannot_be_cancelled_and_nothing_is_kept_of_it(store, run):
    with pytest.raises(Invalid, match="the run has not begun"):
        await runs.request_cancel(store, run, "a person asked")

    assert (await EventLog(store, run).state()).absent
    assert await store.client.execute_command("EXISTS", run.keys.meta) == 0


async def test_a_log_that_is_ahead_of_its_meta_is_continued_behind_both(store, run, harness, said):
    appender = harness()
    await appender.append([said(), said(), said()])
    await store.client.execute_command("HSET", run.keys.meta, "head", 1)

    await runs.append_once(store, run, 1, [said("after")], guard="x")

    assert [event.seq for event in await EventLog(store, run).all()] == [1, 2, 3, 4]
