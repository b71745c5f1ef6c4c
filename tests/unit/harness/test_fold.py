"""Whatever the log, and wherever it ends, what the fold gives can be sent to a provider."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from towline.api.snapshot import Limits, Model, Snapshot
from towline.events.event import Event
from towline.harness.consumed import NOTHING_CONSUMED
from towline.harness.fold import fold
from towline.harness.models import anthropic, openai_chat
from towline.harness.models.base import Request
from towline.harness.steps import AskModel, CallTools, CompleteTurn, Fail, Pending, Rest, next_step
from towline.harness.transcript import AssistantMessage
from towline.testing.ports import RUN
from towline.testing.provider_rules import anthropic_problems, openai_problems

NO_MAIL = Pending()
MODEL = Model(api="AnthropicMessages", provider="test", name="model")
TYPES = [
    "run.started",
    "harness.lost",
    "turn.started",
    "user.message",
    "turn.completed",
    "turn.waiting",
    "turn.retrying",
    "span.model_request_end",
    "agent.message_start",
    "agent.message",
    "agent.message_aborted",
    "agent.tool_use",
    "agent.tool_result",
    "sandbox.lost",
    "somebody.elses",
]
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
VISIBLE = TEXT.filter(str.strip)


@st.composite
def logs(draw):
    """Any order of events, sensible or not; ids are unique, as they are in a log."""
    events, calls, prompts = [], [], 0
    for seq, type in enumerate(draw(st.lists(st.sampled_from(TYPES), max_size=40)), start=1):
        data = {}
        if type == "user.message":
            prompts += 1
            data = {"prompt_id": f"{prompts}-0", "content": draw(VISIBLE)}
        elif type == "span.model_request_end":
            usage = {"input_tokens": 3, "output_tokens": 2, "cached_input_tokens": 1}
            data = {"usage": usage, "cost_micro_usd": 7}
        elif type == "agent.message":
            blocks = draw(st.lists(st.sampled_from(["text", "blank", "thinking", "use", "broken"]), max_size=4))
            content = [block_of(draw, kind, f"tc_{seq:012x}_{place}") for place, kind in enumerate(blocks)]
            calls += [block["call_id"] for block in content if block["type"] == "tool_use"]
            data = {"message_id": f"msg_{seq:012x}", "content": content, "stop_reason": "end_turn"}
        elif type.startswith("agent.message"):
            data = {"message_id": f"msg_{seq:012x}"}
        elif type.startswith("agent.tool"):
            call_id = draw(st.sampled_from([*calls, "tc_unknown_0"]))
            content = [{"type": "text", "text": draw(TEXT | st.sampled_from(["", "\n"]))}]
            data = {"call_id": call_id, "content": content, "is_error": draw(st.booleans()), "outcome": "ok"}
        turn = draw(st.integers(1, 3)) if type == "turn.started" else None
        events.append(Event(seq, f"ev_{seq}", type, RUN, turn, "", "harness", 1, json.dumps(data).encode()))
    return events


def block_of(draw, kind, call_id):
    match kind:
        case "text":
            return {"type": "text", "text": draw(VISIBLE)}
        case "blank":
            return {"type": "text", "text": " "}
        case "thinking":
            return {"type": "thinking", "text": "hm", "native": {"type": "thinking", "thinking": "hm"}}
        case "use":
            name = draw(st.sampled_from(["exec", "a b", "", "ünknown" * 20]))
            return {"type": "tool_use", "call_id": call_id, "name": name, "input": {"a": 1}, "provider_id": "same"}
        case _:
            return {"type": "tool_use", "call_id": call_id, "name": "exec", "input_text": "{", "provider_id": "same"}


def resolved(history):
    """The history after the loop has asked the gateway for every open call."""
    for call_id in list(history.open_calls):
        content = [{"type": "text", "text": "late"}]
        history.apply("agent.tool_result", {"call_id": call_id, "content": content, "is_error": True, "outcome": "ok"})
    return history


@given(logs())
def test_every_beginning_of_any_log_gives_a_conversation_both_providers_accept(events):
    for length in range(len(events) + 1):
        history = resolved(fold(events[:length]))
        last = history.last_answer
        if not history.turn_open or (last is not None and not last.tool_uses):
            continue  # no request is made from here
        request = Request("msg_1", "", without_leading_answers(history), ())

        assert anthropic_problems(anthropic.body(MODEL, request)) == []
        assert openai_problems(openai_chat.body(MODEL, request)) == []


def without_leading_answers(history):
    """A real log cannot answer before it was asked; one made of random events can."""
    messages = list(history.messages)
    while messages and isinstance(messages[0], AssistantMessage):
        messages.pop(0)
    return tuple(messages)


@given(logs())
def test_each_tool_use_has_one_result_or_is_open(events):
    history = fold(events)

    uses = [use for m in history.messages if isinstance(m, AssistantMessage) for use in m.tool_uses]
    with_result = [
        use
        for m in history.messages
        if isinstance(m, AssistantMessage)
        for use in m.tool_uses
        if use.call_id in m.results
    ]
    assert {use.call_id for use in uses} == {use.call_id for use in with_result} | set(history.open_calls)
    assert not {use.call_id for use in with_result} & set(history.open_calls)
    assert history.claimed <= set(history.open_calls)


@given(logs())
def test_each_call_is_counted_once_however_often_it_is_told(events):
    history = fold(events)

    named = {e.payload["call_id"] for e in events if e.type in ("agent.tool_use", "agent.tool_result")}
    assert history.totals.tool_calls <= len(named - {"tc_unknown_0"})
    assert history.totals.turns == sum(event.type == "turn.started" for event in events)


@given(logs())
def test_there_is_a_next_step_for_every_history(events):
    step = step_of(fold(events), Limits())

    assert isinstance(step, Rest | AskModel | CallTools | CompleteTurn | Fail)


def step_of(history, limits):
    snapshot = Snapshot(namespace="default", name="run", uid="u", prompt="Go.", model=MODEL, limits=limits)
    return next_step(history, snapshot, NO_MAIL)


def log(*facts):
    return [
        Event(seq, f"ev_{seq}", type, RUN, None, "", "harness", 1, json.dumps(data).encode())
        for seq, (type, data) in enumerate(facts, start=1)
    ]


def answer(*blocks, message_id="msg_00000000000a", stop_reason="end_turn"):
    return ("agent.message", {"message_id": message_id, "content": list(blocks), "stop_reason": stop_reason})


def result(call_id, text="out"):
    content = [{"type": "text", "text": text}]
    return ("agent.tool_result", {"call_id": call_id, "content": content, "is_error": False, "outcome": "ok"})


USE = {"type": "tool_use", "call_id": "tc_a_0", "name": "exec", "input": {}, "provider_id": "x"}
PROMPT = ("user.message", {"prompt_id": "4-0", "content": "Go."})


def test_a_turn_whose_prompt_never_came_is_not_open_and_consumes_nothing():
    history = fold(log(("turn.started", {"prompt_ids": ["4-0"]})))

    assert (history.turn, history.turn_open, history.consumed) == (1, False, NOTHING_CONSUMED)


def test_a_prompt_that_a_turn_took_is_consumed():
    history = fold(log(("turn.started", {"prompt_ids": ["4-0"]}), PROMPT))

    assert (history.turn_open, history.consumed.as_list()) == (True, [0, 4])


def test_an_answer_begun_and_not_finished_is_named():
    history = fold(log(PROMPT, ("agent.message_start", {"message_id": "msg_b"})))

    assert history.unfinished_message == "msg_b"
    assert isinstance(step_of(history, Limits()), AskModel)


def test_half_a_batch_leaves_the_other_half_open():
    second = {**USE, "call_id": "tc_a_1"}
    history = fold(log(PROMPT, answer(USE, second), result("tc_a_0")))

    assert step_of(history, Limits()) == CallTools((history.open_calls["tc_a_1"],))


def test_the_first_result_wins_and_results_of_strangers_are_passed_over():
    history = fold(log(PROMPT, answer(USE), result("tc_a_0", "first"), result("tc_a_0", "second"), result("tc_z_0")))

    assert history.messages[1].results["tc_a_0"].text == "first"
    assert history.totals.tool_calls == 1


def test_a_final_answer_without_its_end_completes_the_turn():
    history = fold(log(PROMPT, answer({"type": "text", "text": "Done."})))

    assert step_of(history, Limits()) == CompleteTurn("end_turn")


def test_a_limit_is_cumulative_over_the_log():
    usage = {"input_tokens": 60, "output_tokens": 1, "cached_input_tokens": 0}
    end = ("span.model_request_end", {"usage": usage, "cost_micro_usd": 0})
    history = fold(log(PROMPT, end, answer(USE), result("tc_a_0"), end))

    assert isinstance(step_of(history, Limits(max_input_tokens=120)), Fail)
    assert isinstance(step_of(history, Limits(max_input_tokens=121)), AskModel)


def test_calls_done_before_a_crash_count_towards_the_batch_they_belong_to():
    second = {**USE, "call_id": "tc_a_1"}
    history = fold(log(PROMPT, answer(USE, second), result("tc_a_0")))

    assert isinstance(step_of(history, Limits(max_tool_calls=2)), CallTools)
    assert isinstance(step_of(history, Limits(max_tool_calls=1)), Fail)


def test_a_terminal_event_closes():
    assert fold(log(("run.failed", {"reason": "x", "message": "y"}))).closed == "run.failed"


def test_the_fold_does_not_change_its_events():
    events = log(PROMPT, answer(USE), result("tc_a_0"))
    before = [replace(event) for event in events]

    fold(events)

    assert events == before
