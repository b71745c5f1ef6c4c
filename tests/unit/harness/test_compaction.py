"""A history that grows too large is cut where that is safe, and goes on as one that was never cut."""

import json

import pytest

from tests.unit.harness.test_loop import snapshot
from towline.api.snapshot import Limits, Model
from towline.events.event import Event, to_json
from towline.harness.compaction import SUMMARISE, continued, cut_for
from towline.harness.fold import SUMMARY_HEAD, History, fold
from towline.harness.loop import Ending, run_turns
from towline.harness.models import anthropic, openai_chat
from towline.harness.models.base import Finished, ModelUnavailable, Usage
from towline.harness.models.scripted import Scripted
from towline.harness.sizes import Window
from towline.harness.transcript import AssistantMessage, Text, UserMessage
from towline.testing.ports import RUN, MemoryInbox, MemorySink, RoteModel, ports, use
from towline.testing.provider_rules import anthropic_problems, openai_problems

SMALL = Model(api="AnthropicMessages", provider="test", name="small", context_tokens=1000)  # 4,000 characters


def echo(text):
    return text * 100


def working(turns, **given):
    """A run of one turn with so many tool calls of 500 characters each."""
    model = RoteModel(*turns)
    sink = MemorySink()
    all_ports, gateway, _ = ports(model, sink, given.pop("inbox", None), echo=echo)
    return model, sink, all_ports, gateway, snapshot(**given).model_copy(update={"model": SMALL})


CALLS = [[use("echo", text=f"{n:05}")] for n in range(6)]


async def test_in_the_middle_of_a_long_turn_the_beginning_is_summarised_and_the_prompt_kept():
    model, sink, all_ports, gateway, given = working([*CALLS, "What was done so far.", "Done."])

    history = History()
    assert await run_turns(all_ports, given, history) is Ending.FINISHED

    assert len(gateway.executed) == 6
    [compacted] = sink.payloads("context.compacted")
    assert (compacted["reason"], compacted["summary"]) == ("budget", "What was done so far.")
    assert compacted["before_tokens"] > 800
    assert (compacted["turn"], compacted["turn_open"], compacted["turn_prompts"]) == (1, True, ["0-0"])
    assert [message["role"] for message in compacted["kept"]] == ["user", "assistant"]
    asked, answered = model.requests[-2:]
    assert asked.purpose == "summary"
    assert asked.messages[-1] == UserMessage(SUMMARISE)
    assert [each.text for each in answered.messages[:2]] == [SUMMARY_HEAD + "What was done so far.", "Go."]
    assert sink.payloads("run.completed")[0]["result"]["text"] == "Done."
    assert sink.totals.input_tokens == 8 * 10


async def test_every_request_around_a_compaction_is_one_that_providers_accept():
    model, _, all_ports, _, given = working([*CALLS, "Summary.", *CALLS, "Summary again.", "Done."])

    await run_turns(all_ports, given, History())

    assert sum(request.purpose == "summary" for request in model.requests) >= 2
    for request in model.requests:
        assert anthropic_problems(anthropic.body(SMALL, request)) == []
        assert openai_problems(openai_chat.body(SMALL, request)) == []


async def test_a_summary_is_no_message_of_the_conversation_but_its_tokens_count():
    _, sink, all_ports, _, given = working([*CALLS, "Summary.", "Done."])

    await run_turns(all_ports, given, History())

    assert sink.types.count("agent.message") == 7
    assert sink.types.count("span.model_request_start") == sink.types.count("span.model_request_end") == 8


async def test_a_fold_may_begin_at_the_compaction():
    _, sink, all_ports, _, given = working([*CALLS, "Summary.", "Done."], interactive=True)
    history = History()

    await run_turns(all_ports, given, history)

    at = sink.types.index("context.compacted")
    assert fold(sink.events[at:]) == fold(sink.events) == history
    assert fold(sink.events[at : at + 1]) == fold(sink.events[: at + 1])  # the counts before it are forgotten


async def test_a_compaction_that_fails_is_retried_and_then_fails_the_run():
    _, sink, all_ports, _, given = working([*CALLS, *[ModelUnavailable("down")] * 8])

    await run_turns(all_ports, given, History())

    assert sink.payloads("run.failed")[0]["reason"] == "ModelUnavailable"
    assert "context.compacted" not in sink.types


async def test_words_beside_a_tool_use_are_no_summary():
    _, sink, all_ports, gateway, given = working(
        [*CALLS, [Text("Let me look at the next file."), use("echo", text="no")], "Real summary.", "Done."]
    )

    await run_turns(all_ports, given, History())

    assert [each["summary"] for each in sink.payloads("context.compacted")] == ["Real summary."]
    assert sink.payloads("turn.retrying")[0]["reason"].startswith("ModelProtocolError: the model used a tool")
    assert sink.payloads("run.completed")[0]["result"]["text"] == "Done."
    assert len(gateway.executed) == 6
    assert sink.totals.input_tokens == 9 * 10


async def test_a_model_that_uses_tools_where_a_summary_is_due_fails_the_run_in_the_end():
    model, sink, all_ports, gateway, given = working([*CALLS, *[[use("echo", text="no")]] * 4])

    await run_turns(all_ports, given, History())

    assert sink.payloads("run.failed")[0]["reason"] == "ModelProtocolError"
    assert len(model.requests) == 6 + 4
    assert len(gateway.executed) == 6


@pytest.mark.parametrize(
    ("text", "stop_reason", "reason"),
    [
        ("What was done so", "max_tokens", "OutputTruncated"),
        ("I will not.", "refusal", "ModelRefused"),
        (" \n", "end_turn", "EmptyAnswer"),
    ],
)
async def test_half_a_summary_or_none_fails_the_run_as_half_an_answer_does(text, stop_reason, reason):
    half = Finished((Text(text),), stop_reason, Usage(10, 5))
    _, sink, all_ports, _, given = working([*CALLS, half, "Done."])

    await run_turns(all_ports, given, History())

    assert sink.payloads("run.failed")[0]["reason"] == reason
    assert "context.compacted" not in sink.types
    assert sink.totals.input_tokens == 7 * 10


async def test_no_summary_is_asked_for_beyond_a_limit():
    model, sink, all_ports, _, given = working(CALLS, limits=Limits(max_input_tokens=60))

    await run_turns(all_ports, given, History())

    assert sink.payloads("run.failed")[0]["reason"] == "InputTokenLimitReached"
    assert len(model.requests) == 6


async def test_an_interruption_ends_the_summary_and_changes_nothing():
    inbox = MemoryInbox()
    model, sink, all_ports, _, given = working(
        [*CALLS, lambda: inbox.post("Stop.", "interrupt"), "Summary.", "Done."], inbox=inbox
    )

    await run_turns(all_ports, given, History())

    assert [each["stop_reason"] for each in sink.payloads("turn.completed")] == ["interrupted", "end_turn"]
    assert sink.types.count("context.compacted") == 1
    assert "agent.message_aborted" not in sink.types
    assert model.requests[-1].messages[-1] == UserMessage("Stop.")


def grown(*sizes, turn_at=0, request_tokens=0, since=()):
    """A history in the middle of a turn, of messages of so many characters; `since` the provider counted some more."""
    history = History(turn_open=True, turn_at=turn_at, request_tokens=request_tokens)
    for size in sizes:
        history._add(UserMessage("x" * size))
    history.request_characters = history.characters if request_tokens else 0
    for size in since:
        history._add(UserMessage("x" * size))
    return history


@pytest.mark.parametrize(
    ("history", "cut"),
    [
        (grown(*[100] * 20), None),  # half full
        (grown(*[100] * 33), (27, 0)),  # a fifth of it is kept, and the turn's first prompt
        (grown(*[100] * 33, turn_at=30), (27, None)),  # the turn's prompt is in the part that is kept
        (grown(3300), None),  # one huge prompt gets no smaller
        (grown(100, 3300, 100, 100, turn_at=1), None),
        (grown(*[1] * 2001), (2001 - 200, 0)),
        (grown(*[10] * 30, request_tokens=900), (24, 0)),  # the provider counts otherwise
    ],
)
def test_the_cut_keeps_the_latest_fifth_and_is_made_only_where_it_helps(history, cut):
    found = cut_for(history, Window(1000))

    assert (found and (found.at, found.prompt)) == cut


@pytest.mark.parametrize(
    ("history", "window", "is_cut"),
    [
        (grown(*[5_000] * 20, request_tokens=26_000), Window(32_768, 8192), True),  # no room for the answer otherwise
        (grown(*[5_000] * 18, request_tokens=24_000), Window(32_768, 8192), False),
        (grown(*[5_000] * 18, request_tokens=24_000, since=[4_000]), Window(32_768, 8192), True),
        (grown(*[5_000] * 6, request_tokens=15_000, since=[40_000]), Window(32_768, 8192), True),
        (grown(*[5_000] * 18), Window(32_768, 8192), False),
        (grown(*[5_000] * 18), Window(32_768, 8192, head_characters=20_000), True),
        (grown(*[5_000] * 20, request_tokens=160_001), Window(200_000, 8192), True),  # four fifths, where that is less
        (grown(*[5_000] * 20, request_tokens=160_000), Window(200_000, 8192), False),
    ],
)
def test_a_cut_comes_in_time_to_leave_room_for_the_answer(history, window, is_cut):
    assert (cut_for(history, window) is not None) is is_cut


async def test_a_script_goes_on_where_it_was_after_a_compaction():
    steps = [{"text": "Working.", "tool_calls": [{"name": "echo", "arguments": {"text": f"{n:05}"}}]} for n in range(6)]
    script = Model(
        api="Scripted", provider="test", name="s", script=[*steps, {"text": "Done, {{prompt.2}}"}], context_tokens=1000
    )
    sink = MemorySink()
    all_ports, _, _ = ports(Scripted(script), sink, echo=echo)

    await run_turns(all_ports, snapshot().model_copy(update={"model": script}), History())

    [compacted] = sink.payloads("context.compacted")
    assert compacted["summary"] == "The prompts so far: Go."
    assert sink.payloads("run.completed")[0]["result"]["text"] == "Done, Go."


async def test_a_run_that_continues_another_has_its_messages_and_nothing_else_of_it():
    model = RoteModel([use("echo", text="a"), use("echo", text="b")])
    sink = MemorySink()
    all_ports, gateway, _ = ports(model, sink, echo=echo)
    truly_call = gateway.call

    async def only_once(use):
        if gateway.calls:
            raise RuntimeError("killed here")
        return await truly_call(use)

    gateway.call = only_once
    with pytest.raises(RuntimeError):
        await run_turns(all_ports, snapshot(), History())
    data = continued(fold(sink.events), {"uid": "u", "seq": 8})

    history = fold([Event(1, "ev_1", "context.compacted", RUN, None, "", "harness", 1, to_json(data))])
    assert data["source"] == {"uid": "u", "seq": 8}
    assert [message.text for message in history.messages] == ["Go.", ""]
    answer = history.messages[1]
    assert isinstance(answer, AssistantMessage)
    assert [result.outcome for result in answer.results.values()] == ["ok", "cancelled"]
    assert (history.turn, history.turn_open, history.consumed.as_list(), history.answers) == (0, False, [-1], 0)
    assert history.totals == History().totals
    assert history.begun


def test_a_history_too_large_for_one_event_is_taken_over_from_its_latest_part():
    source = grown(*[1 << 20] * 10)

    data = continued(source, {"uid": "u", "seq": 1})

    assert 1 < len(data["kept"]) < 10
    assert len(json.dumps(data)) < 7 << 20
