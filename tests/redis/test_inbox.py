"""Prompts: posted once, read in order, refused after the end."""

import asyncio
from dataclasses import replace

import pytest

from towline import inbox
from towline.errors import Gap, Invalid, LogClosed, PromptsUnread
from towline.events import runs
from towline.events.event import draft
from towline.events.log import EventLog
from towline.events.totals import Totals
from towline.inbox import Prompt


@pytest.fixture(autouse=True)
async def begun(store, run, now):
    await runs.create(store, run, b"{}", now=now)


async def test_a_run_that_does_not_exist_takes_no_prompt_and_leaves_nothing_behind(store, run):
    unknown = replace(run, uid="unknown")

    with pytest.raises(Invalid, match="expected the UID of one that exists"):
        await inbox.post(store, unknown, "hello", key="k")
    assert await store.client.execute_command("EXISTS", unknown.keys.meta) == 0


async def test_prompts_are_numbered_and_read_after_a_cursor(store, run):
    await inbox.post(store, run, "first", key="k1", sender="ada")
    await inbox.post(store, run, "second, ünïcode", key="k2", delivery="steer")

    assert await inbox.read_after(store, run, "0-0") == [
        Prompt("1-0", "first", "queue", "ada", "k1"),
        Prompt("2-0", "second, ünïcode", "steer", "", "k2"),
    ]
    assert [prompt.id for prompt in await inbox.read_after(store, run, "1-0")] == ["2-0"]
    assert await inbox.read_after(store, run, "2-0") == []
    assert (await EventLog(store, run).state()).inbox_head == 2


async def test_a_prompt_posted_again_under_its_key_is_the_first_one(store, run):
    prompts = await asyncio.gather(*(inbox.post(store, run, "text", key="same") for _ in range(5)))

    assert len(set(prompts)) == 1
    assert len(await inbox.read_after(store, run, "")) == 1


@pytest.mark.parametrize(("content", "delivery"), [("other", "queue"), ("text", "steer")])
async def test_a_key_used_for_another_prompt_is_refused_by_its_name(store, run, content, delivery):
    await inbox.post(store, run, "text", key="my-key")

    with pytest.raises(Invalid, match=r'"my-key" was used before for another prompt \(1-0\)'):
        await inbox.post(store, run, content, key="my-key", delivery=delivery)
    assert len(await inbox.read_after(store, run, "")) == 1


async def test_a_delivery_that_does_not_exist_is_refused(store, run):
    with pytest.raises(Invalid, match="expected queue, steer, interrupt"):
        await inbox.post(store, run, "text", key="k", delivery="express")


@pytest.mark.parametrize("content", ["", " \n\t"])
async def test_a_blank_prompt_is_refused(store, run, content):
    with pytest.raises(Invalid, match="prompt: it is blank; expected some words"):
        await inbox.post(store, run, content, key="k")
    assert await inbox.read_after(store, run, "") == []


async def test_what_waits_in_the_inbox_is_what_was_posted_less_what_the_log_took(store, run, harness, now):
    for text in ("one", "two"):
        await inbox.post(store, run, text, key=text)
    assert (await EventLog(store, run).state()).unread == 2

    await harness().append([draft("user.message", {"prompt_id": "2-0", "content": "two"}, now=now)], Totals(prompts=1))

    assert (await EventLog(store, run).state()).unread == 1


async def test_a_run_with_a_prompt_that_its_harness_has_not_seen_does_not_complete(store, run, harness, now):
    appender = harness()
    await inbox.post(store, run, "one", key="k1")
    await inbox.post(store, run, "two", key="k2")

    with pytest.raises(PromptsUnread) as refused:
        await appender.finish(draft("run.completed", {}, now=now), seen_prompt=1)
    assert refused.value.count == 1
    assert (await EventLog(store, run).state()).closed is None

    await appender.finish(draft("run.completed", {}, now=now), seen_prompt=2)
    assert (await EventLog(store, run).state()).closed == "run.completed"


async def test_a_failure_ends_the_run_whatever_waits_in_the_inbox(store, run, harness, now):
    await inbox.post(store, run, "one", key="k1")

    await harness().finish(draft("run.failed", {}, now=now))

    assert (await EventLog(store, run).state()).closed == "run.failed"


@pytest.mark.parametrize(
    ("type", "data"),
    [("turn.started", {"prompt_ids": ["3-0"]}), ("user.message", {"prompt_id": "3-0", "content": "steer"})],
)
async def test_a_prompt_that_the_log_took_keeps_its_number_when_the_inbox_lost_it(store, run, harness, now, type, data):
    await harness().append([draft(type, data, now=now)], Totals(prompts=1))

    assert (await inbox.post(store, run, "next", key="k")).id == "4-0"


async def test_a_post_whose_reply_was_lost_is_in_the_inbox_once(store, run, lose_replies):
    lose_replies(1)

    assert (await inbox.post(store, run, "hello", key="k")).id == "1-0"
    assert len(await inbox.read_after(store, run, "0-0")) == 1


async def test_a_finished_run_takes_no_prompts(store, run, now):
    await inbox.post(store, run, "in time", key="k1")
    await runs.finish(store, run, 1, draft("run.completed", {}, now=now))

    with pytest.raises(LogClosed):
        await inbox.post(store, run, "too late", key="k2")
    assert (await inbox.post(store, run, "in time", key="k1")).id == "1-0", "a repeat is no new prompt"


async def test_a_prompt_beyond_the_limit_is_refused_before_it_is_sent(store, run):
    with pytest.raises(Invalid, match="expected at most"):
        await inbox.post(store, run, "x" * (inbox.MAX_CONTENT_BYTES + 1), key="k")


@pytest.fixture
def write(harness, now):
    """Appends events of a turn, as a harness would."""
    appender = harness()

    async def write(*events, turn=1):
        await appender.append([draft(type, data, now=now, turn=turn) for type, data in events])

    return write


def taking(prompt_id, delivery="queue"):
    message = {"prompt_id": prompt_id, "content": "Hi.", "delivery": delivery, "sender": ""}
    return ("turn.started", {"prompt_ids": [prompt_id]}), ("user.message", message)


def saying(text):
    return (
        "agent.message",
        {"message_id": "m", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"},
    )


DONE = ("turn.completed", {"stop_reason": "end_turn"})


async def test_a_waiter_gets_the_last_answer_of_the_turn_that_took_its_prompt(store, run, write):
    await inbox.post(store, run, "Hi.", key="a")
    await inbox.post(store, run, "Hi.", key="b")
    waiting = asyncio.create_task(inbox.wait_for_reply(store, run, "2-0"))

    await write(*taking("1-0"), saying("to the first"), DONE, turn=1)
    await write(*taking("2-0"), saying("first words"), saying("last words"), turn=2)
    assert not waiting.done()
    await write(DONE, turn=2)

    async with asyncio.timeout(60):
        assert await waiting == inbox.Reply("last words", "end_turn")
    assert await inbox.wait_for_reply(store, run, "1-0") == inbox.Reply("to the first", "end_turn")


async def test_the_waiter_of_a_steering_prompt_gets_the_end_of_the_running_turn(store, run, write):
    await inbox.post(store, run, "Hi.", key="a", delivery="steer")
    steered = taking("1-0", "steer")[1]

    await write(*taking("0-0"), saying("before"), steered, saying("after"), DONE)

    assert await inbox.wait_for_reply(store, run, "1-0") == inbox.Reply("after", "end_turn")


async def test_the_waiter_of_an_interrupted_turn_gets_what_was_said_until_then(store, run, write):
    await inbox.post(store, run, "Hi.", key="a")
    aborted = ("agent.message_aborted", {"message_id": "m", "partial": "as far as", "reason": "Interrupted"})

    await write(*taking("1-0"), aborted, ("turn.completed", {"stop_reason": "interrupted"}))

    assert await inbox.wait_for_reply(store, run, "1-0") == inbox.Reply("as far as", "interrupted")


async def test_the_waiter_of_a_run_that_ends_is_told_so(store, run, write, now):
    await inbox.post(store, run, "Hi.", key="a")
    await runs.finish(store, run, 1, draft("run.cancelled", {"reason": "enough"}, now=now))

    reply = await inbox.wait_for_reply(store, run, "1-0")

    assert (reply.text, reply.stop_reason, reply.ended.type) == ("", "", "run.cancelled")


@pytest.mark.parametrize("prompt_id", ["2-0", "0-0", "01-0", "1-00", "1", "-1-0", "\u0661-0", "1-0\n", ""])
async def test_a_prompt_that_nobody_posted_is_not_waited_for(store, run, prompt_id):
    await inbox.post(store, run, "Hi.", key="a")

    with pytest.raises(Invalid, match="not in the inbox"):
        await inbox.wait_for_reply(store, run, prompt_id)


async def test_a_reply_is_found_in_a_log_whose_beginning_is_no_longer_kept(store, run, write):
    await inbox.post(store, run, "Hi.", key="a")
    await write(*taking("0-0"), saying("long ago"), DONE)
    await write(*taking("1-0"), saying("lately"), DONE, turn=2)

    assert await runs.trim(store, run, 6, above=3) == 5
    assert await inbox.wait_for_reply(store, run, "1-0") == inbox.Reply("lately", "end_turn")


def compacted(turn, *turn_prompts, consumed, turn_open=True):
    state = {"turn": turn, "turn_open": turn_open, "turn_prompts": turn_prompts, "consumed": consumed}
    return ("context.compacted", state)


@pytest.mark.parametrize(
    ("consumed", "turn_open"),
    [([1], False), ([0, 1], False), ([2], True)],
    ids=["between turns", "taken before an older one", "in the turn of another"],
)
async def test_a_reply_that_is_no_longer_kept_is_a_gap(store, run, write, consumed, turn_open):
    for key in ("a", "b"):
        await inbox.post(store, run, "Hi.", key=key)
    await write(*taking("1-0"), saying("long ago"), DONE)
    await write(compacted(2, "2-0", consumed=consumed, turn_open=turn_open), saying("to another"), DONE, turn=2)
    await runs.trim(store, run, 6, above=0)

    with pytest.raises(Gap) as gap:
        async with asyncio.timeout(60):
            await inbox.wait_for_reply(store, run, "1-0")

    assert gap.value.first_available == 6


async def test_of_a_turn_whose_beginning_is_no_longer_kept_the_end_is_waited_for(store, run, write):
    await inbox.post(store, run, "Hi.", key="a")
    await write(*taking("1-0"), saying("long ago"))
    await write(compacted(1, "1-0", consumed=[1]), saying("lately"))
    await runs.trim(store, run, 5, above=0)
    waiting = asyncio.create_task(inbox.wait_for_reply(store, run, "1-0"))

    await write(saying("at last"), DONE)

    async with asyncio.timeout(60):
        assert await waiting == inbox.Reply("at last", "end_turn")


async def test_a_prompt_that_is_taken_after_the_first_event_that_is_kept_is_waited_for(store, run, write):
    for key in ("a", "b"):
        await inbox.post(store, run, "Hi.", key=key)
    await write(*taking("1-0"))
    await write(compacted(1, "1-0", consumed=[1]), saying("to the first"), DONE)
    await runs.trim(store, run, 4, above=0)
    await write(*taking("2-0"), saying("to the second"), DONE, turn=2)

    assert await inbox.wait_for_reply(store, run, "2-0") == inbox.Reply("to the second", "end_turn")
