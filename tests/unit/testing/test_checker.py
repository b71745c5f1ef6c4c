"""The checker sees each broken promise, and nothing wrong with a history that is right."""

import json
from dataclasses import replace

import pytest

from towline.events.event import Event, RunRef
from towline.testing.checker import Posted, Recorded, check

RUN = RunRef("default", "u", "run")
RESULT = {"name": "exec", "outcome": "ok", "is_error": False, "content": [{"type": "text", "text": "out"}]}
USAGE = {"input_tokens": 1, "output_tokens": 1, "cached_input_tokens": 0}


def an_answer(text="", *calls):
    uses = [{"type": "tool_use", "call_id": call, "name": "exec", "input": {}} for call in calls]
    content = [*([{"type": "text", "text": text}] if text else []), *uses]
    return "agent.message", {"message_id": "msg_1", "content": content, "stop_reason": "end_turn"}


def a_request():
    return "span.model_request_start", {"message_id": "msg_1", "model": "m"}


def a_prompt(number, content, delivery="queue"):
    return "user.message", {"prompt_id": f"{number}-0", "content": content, "delivery": delivery, "sender": ""}


def a_claim(call, word=""):
    return "agent.tool_use", {"call_id": call, "name": "exec", "input": {"command": f"echo {word} >> effects"}}


def a_result(call, **given):
    return "agent.tool_result", RESULT | {"call_id": call} | given


GOOD = [
    ("run.started", {}),
    ("turn.started", {"prompt_ids": ["0-0"]}),
    a_prompt(0, "Go."),
    a_request(),
    an_answer("First.", "tc_1", "tc_2"),
    a_claim("tc_1", "one"),
    a_result("tc_1"),
    a_claim("tc_2", "two"),
    a_result("tc_2", outcome="unknown"),
    a_request(),
    an_answer("Done."),
    ("turn.completed", {"stop_reason": "end_turn"}),
    ("turn.started", {"prompt_ids": ["1-0"]}),
    a_prompt(1, "More."),
    a_request(),
    an_answer("More done."),
    ("turn.completed", {"stop_reason": "end_turn"}),
    ("run.completed", {}),
]
POSTED = [Posted("a", "More.", "1-0"), Posted("a", "More.", "1-0"), Posted("late", "Too late.", None)]


def logged(facts, epoch=1):
    return [
        Event(
            seq, f"ev_{seq:020x}", type, RUN, 1, "2026-01-01T00:00:00.000Z", "harness", epoch, json.dumps(data).encode()
        )
        for seq, (type, data) in enumerate(facts, start=1)
    ]


def recorded(facts=GOOD, **given):
    log = given.pop("log", None) or logged(facts)
    usual = {
        "replay": log,
        "seen": [log],
        "acknowledged": [event.id for event in log],
        "posted": POSTED,
        "effects": ["one"],
        "orders": ["one", "two"],
    }
    return Recorded(log=log, **usual | given)


def kinds(record):
    return sorted({violation.kind for violation in check(record)})


def without(position):
    return [fact for index, fact in enumerate(GOOD) if index != position]


def index_of(type, nth=0):
    return [position for position, (name, _) in enumerate(GOOD) if name == type][nth]


def test_a_history_that_is_right_has_nothing_wrong_with_it():
    assert check(recorded()) == []


def test_an_unknown_outcome_may_have_been_executed_or_not():
    assert check(recorded(effects=["one", "two"])) == []


def test_a_hole_in_the_numbers_is_seen():
    log = [event if event.seq < 5 else replace(event, seq=event.seq + 1) for event in logged(GOOD)]

    assert kinds(recorded(log=log)) == ["out of order"]


def test_a_log_that_does_not_begin_with_its_first_event_is_seen():
    log = logged(GOOD)

    assert kinds(recorded(log=log[1:], replay=log[1:], seen=(), acknowledged=())) == ["lost"]


def test_a_lower_epoch_after_a_higher_one_is_seen():
    log = [replace(event, epoch=2) if event.seq == 4 else event for event in logged(GOOD)]

    assert kinds(recorded(log=log)) == ["out of order"]


def test_an_event_that_is_there_twice_is_seen():
    log = logged(GOOD)
    log[11] = replace(log[11], id=log[10].id)

    assert "duplicated" in kinds(recorded(log=log))


def test_readings_that_differ_are_seen():
    log = logged(GOOD)
    changed = [*log[:3], replace(log[3], data=log[3].data.replace(b'": "', b'":"')), *log[4:]]

    assert kinds(recorded(log=log, replay=changed)) == ["out of order"]


@pytest.mark.parametrize("client", ["acknowledged", "seen"])
def test_an_event_that_a_client_knew_and_the_log_does_not_is_seen(client):
    full = logged(GOOD)
    known = {"acknowledged": ["ev_gone"], "seen": [[replace(full[3], id="ev_gone")]]}

    assert kinds(recorded(**{client: known[client]})) == ["lost"]


def test_an_event_that_changed_after_it_was_shown_is_seen():
    shown = replace(logged(GOOD)[3], data=b'{"message_id":"msg_2","model":"m"}')

    assert "lost" in kinds(recorded(seen=[[shown]]))


def test_after_a_loss_of_the_store_an_event_may_have_another_place_but_must_be_there():
    shown_before = [replace(event, seq=event.seq + 3) for event in logged(GOOD)[4:8]]

    assert check(recorded(seen=[shown_before, logged(GOOD)])) == []
    assert kinds(recorded(seen=[[replace(shown_before[0], id="ev_gone")], logged(GOOD)])) == ["lost"]


def test_a_follower_that_was_given_events_in_another_order_is_seen():
    log = logged(GOOD)

    assert kinds(recorded(seen=[[log[3], log[2]]])) == ["out of order"]


def test_a_run_without_an_end_and_one_with_two_are_seen():
    assert kinds(recorded(GOOD[:-1])) == ["terminal"]
    assert kinds(recorded([*GOOD, ("run.cancelled", {})])) == ["terminal"]


def test_an_event_after_the_end_is_seen():
    assert kinds(recorded([*GOOD, ("sandbox.deleted", {})])) == ["terminal"]


def test_a_tool_use_without_a_result_is_seen():
    assert kinds(recorded(without(index_of("agent.tool_result", 1)))) == ["history", "result"]


def test_a_tool_use_with_two_results_is_seen():
    position = index_of("agent.tool_result")

    assert kinds(recorded([*GOOD[: position + 1], a_result("tc_1"), *GOOD[position + 1 :]])) == ["result"]


def test_a_call_that_was_claimed_twice_is_seen():
    position = index_of("agent.tool_use")

    assert kinds(recorded([*GOOD[:position], a_claim("tc_1", "one"), *GOOD[position:]])) == ["duplicated"]


def test_a_call_that_no_answer_asked_for_is_seen():
    stray = [a_claim("tc_9"), a_result("tc_9")]

    assert kinds(recorded([*GOOD[:-1], *stray, GOOD[-1]])) == ["result"]


def test_the_last_answer_of_a_failed_run_may_have_tool_uses_that_were_never_made():
    failed = [*GOOD[:-2], a_request(), an_answer("", "tc_5"), ("run.failed", {"reason": "ToolCallLimitReached"})]

    assert "result" not in kinds(recorded(failed))


def test_a_command_that_was_executed_twice_is_seen():
    assert kinds(recorded(effects=["one", "one"])) == ["executed twice"]


def test_a_result_without_an_execution_and_an_execution_without_a_call_are_seen():
    assert kinds(recorded(effects=[])) == ["lost"]
    assert kinds(recorded(effects=["one", "three"], orders=["one", "two", "three"])) == ["lost"]


def test_a_conversation_that_a_provider_would_refuse_is_seen():
    facts = [("agent.message", {"message_id": "m", "content": [], "stop_reason": "x"}), a_request()]

    assert "history" in kinds(recorded([*GOOD[:2], *facts, *GOOD[2:]]))


def test_a_prompt_that_was_accepted_and_not_taken_is_seen():
    waiting = Posted("b", "And this?", "2-0")

    assert kinds(recorded(posted=[*POSTED, waiting])) == ["prompt"]


def test_a_run_that_was_cancelled_may_leave_prompts_unanswered():
    cancelled = [*GOOD[:-1], ("run.cancelled", {"reason": "x"})]

    assert check(recorded(cancelled, posted=[*POSTED, Posted("b", "And this?", "2-0")])) == []


@pytest.mark.parametrize(
    ("facts", "posted"),
    [
        ([*GOOD[:14], a_prompt(1, "More."), *GOOD[14:]], POSTED),  # taken twice
        (GOOD, [Posted("a", "Other.", "1-0")]),  # taken with another content
        (GOOD, []),  # posted by nobody
        (GOOD, [*POSTED, Posted("a", "More.", "2-0")]),  # one key, two prompts
        (GOOD, [*POSTED, Posted("b", "More.", "1-0")]),  # two keys, one prompt
    ],
)
def test_a_prompt_that_is_not_taken_exactly_once_as_it_was_posted_is_seen(facts, posted):
    assert "prompt" in kinds(recorded(facts, posted=posted))


def test_queued_prompts_that_overtake_each_other_are_seen():
    second = [a_prompt(2, "Second."), a_prompt(1, "More.")]
    posted = [*POSTED, Posted("b", "Second.", "2-0")]

    assert "prompt" in kinds(recorded([*GOOD[:13], *second, *GOOD[14:]], posted=posted))
