"""The loop as its reader sees it: events in the log, results in the history, one end."""

import hashlib

import pytest

from towline.api.snapshot import Limits, Model, Price, Snapshot
from towline.errors import Fenced
from towline.harness.fold import History, fold
from towline.harness.loop import Ending, run_turns
from towline.harness.models.base import (
    Finished,
    ModelAuthentication,
    ModelProtocolError,
    ModelRequestRejected,
    ModelUnavailable,
    Usage,
)
from towline.harness.models.scripted import Scripted
from towline.harness.ports import GatewayRefused
from towline.harness.transcript import AssistantMessage, Native, Text, ToolUse
from towline.testing.ports import MemoryInbox, MemorySink, RoteModel, ports, use


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def snapshot(**given):
    model = Model(api="Scripted", provider="test", name="rote", price=given.pop("price", Price()))
    return Snapshot(**{"namespace": "default", "name": "run", "uid": "u", "prompt": "Go.", "model": model, **given})


async def run(
    model, *, inbox=None, sink=None, history=None, limits=None, interactive=False, price=None, prompt="Go.", **tools
):
    sink = sink or MemorySink()
    all_ports, gateway, clock = ports(model, sink, inbox, **tools)
    given = snapshot(limits=limits or Limits(), interactive=interactive, price=price or Price(), prompt=prompt)
    ending = await run_turns(all_ports, given, history if history is not None else History())
    return ending, sink, gateway, clock


async def test_a_prompt_answered_at_once_is_five_appends():
    ending, sink, _, _ = await run(RoteModel("Done."))

    assert ending is Ending.FINISHED
    assert sink.batches == [
        ["turn.started", "user.message"],
        ["span.model_request_start", "agent.message_start"],
        ["span.model_request_end", "agent.message"],
        ["turn.completed"],
        ["run.completed"],
    ]
    [completed] = sink.payloads("run.completed")
    assert completed["result"]["text"] == "Done."
    assert completed["usage"] == {"input_tokens": 10, "output_tokens": 5, "cached_input_tokens": 0}
    assert (completed["turns"], completed["tool_calls"]) == (1, 0)


async def test_tool_uses_are_called_in_order_and_their_results_reach_the_model():
    model = RoteModel([Text("Two things."), use("add", a=1, b=2), use("add", a=3, b=4)], "3 and 7")

    _, sink, gateway, _ = await run(model, add=lambda a, b: str(a + b))

    assert [call.arguments for call in gateway.calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    answer = model.requests[1].messages[-1]
    assert [answer.results[each.call_id].text for each in answer.tool_uses] == ["3", "7"]
    assert sink.types[6:10] == ["agent.tool_use", "agent.tool_result", "agent.tool_use", "agent.tool_result"]
    assert sink.payloads("run.completed")[0]["tool_calls"] == 2


async def test_the_history_of_a_running_harness_is_the_fold_of_its_log():
    history = History()
    model = RoteModel(ModelUnavailable("busy"), [use("echo", text="x")], "Done.")

    _, sink, _, _ = await run(model, history=history, inbox=MemoryInbox(), echo=lambda text: text)

    assert fold(sink.events) == history
    counted = sink.totals
    assert (counted.turns, counted.input_tokens, counted.output_tokens) == (1, 20 + 10, 10 + 2)  # the broken one too
    assert history.totals.tool_calls == 1  # counted by the gateway's claim, not by the harness


async def test_each_prompt_of_the_inbox_is_a_turn_of_its_own():
    _, sink, _, _ = await run(RoteModel("one", "two", "three"), inbox=MemoryInbox("Second.", "Third."))

    assert [started["prompt_ids"] for started in sink.payloads("turn.started")] == [["0-0"], ["1-0"], ["2-0"]]
    assert [event.turn for event in sink.events if event.type == "turn.completed"] == [1, 2, 3]
    assert sink.payloads("run.completed")[0]["result"]["text"] == "three"


async def test_an_interactive_run_waits_once_and_goes_on_when_there_is_a_prompt():
    inbox, history, sink = MemoryInbox(), History(), MemorySink()
    all_ports, _, _ = ports(RoteModel("one", "two"), sink, inbox)

    assert await run_turns(all_ports, snapshot(interactive=True), history) is Ending.ASLEEP
    assert await run_turns(all_ports, snapshot(interactive=True), history) is Ending.ASLEEP
    inbox.post("More.")
    assert await run_turns(all_ports, snapshot(interactive=True), history) is Ending.ASLEEP

    assert sink.types.count("turn.waiting") == 2
    assert [message["content"] for message in sink.payloads("user.message")] == ["Go.", "More."]


@pytest.mark.parametrize("kind", [ModelUnavailable, ModelProtocolError])
async def test_a_passing_fault_is_retried_and_leaves_no_half_message_in_the_history(kind):
    model = RoteModel(kind("try later"), "Done.")

    _, sink, _, clock = await run(model)

    assert sink.batches[2] == ["span.model_request_end", "agent.message_aborted", "turn.retrying"]
    assert sink.payloads("agent.message_aborted")[0]["partial"] == "half an "
    assert sink.payloads("turn.retrying") == [
        {"reason": f"{kind.reason}: try later", "attempt": 1, "delay_seconds": 1.0}
    ]
    assert clock.slept == [1.0]
    assert model.requests[0].messages == model.requests[1].messages
    assert sink.types[-1] == "run.completed"


@pytest.mark.parametrize(
    ("kind", "slept"),
    [(ModelUnavailable, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]), (ModelProtocolError, [1.0, 2.0, 4.0])],
)
async def test_a_fault_that_stays_ends_the_run_after_bounded_retries(kind, slept):
    attempts = len(slept) + 1

    _, sink, _, clock = await run(RoteModel(*[kind("HTTP 500: down")] * attempts))

    assert clock.slept == slept
    [failed] = sink.payloads("run.failed")
    assert failed == {"reason": kind.reason, "message": f"HTTP 500: down (attempt {attempts})"}
    assert sink.types.count("agent.message_aborted") == attempts


@pytest.mark.parametrize(("asked", "slept"), [(30.0, 30.0), (0.2, 1.0), (86_400.0, 120.0)])
async def test_retry_after_is_honoured_within_bounds(asked, slept):
    _, _, _, clock = await run(RoteModel(ModelUnavailable("busy", retry_after_seconds=asked), "Done."))

    assert clock.slept == [slept]


@pytest.mark.parametrize("kind", [ModelAuthentication, ModelRequestRejected])
async def test_a_final_fault_ends_the_run_at_once(kind):
    _, sink, _, clock = await run(RoteModel(kind("no")))

    assert clock.slept == []
    assert sink.payloads("run.failed") == [{"reason": kind.reason, "message": "no"}]


async def test_a_broken_answer_costs_what_the_provider_reported():
    fault = ModelUnavailable("cut")
    fault.usage = Usage(input_tokens=1000)

    _, sink, _, _ = await run(RoteModel(fault, "Done."), price=Price(input_micro_usd=3_000_000))

    assert sink.totals.input_tokens == 1010
    assert sink.totals.cost_micro_usd == 3030


async def test_a_broken_answer_of_which_nothing_was_reported_costs_by_its_length():
    fault = ModelUnavailable("cut")

    _, sink, _, _ = await run(RoteModel(fault, "Done."), prompt="word " * 100)

    usage = sink.payloads("span.model_request_end")[0]["usage"]
    assert usage == {"input_tokens": 125, "output_tokens": 2, "cached_input_tokens": 0}  # "half an "
    assert sink.totals.input_tokens == 125 + 10


async def test_an_answer_that_broke_before_its_first_word_costs_what_was_read():
    class Beginning(RoteModel):
        async def stream(self, request):
            if not self.requests:
                self.requests.append(request)
                yield Usage()
                raise ModelUnavailable("cut")
            async for event in super().stream(request):
                yield event

    _, sink, _, _ = await run(Beginning("Done."), prompt="word " * 100)

    assert (sink.totals.input_tokens, sink.totals.output_tokens) == (125 + 10, 5)


async def test_a_request_that_was_refused_costs_nothing():
    class Refusing(RoteModel):
        async def stream(self, request):
            if not self.requests:
                self.requests.append(request)
                raise ModelUnavailable("busy")
            async for event in super().stream(request):
                yield event

    _, sink, _, _ = await run(Refusing("Done."), prompt="word " * 100)

    assert sink.types.count("span.model_request_end") == 2
    assert (sink.totals.input_tokens, sink.totals.output_tokens) == (10, 5)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_input_tokens=100), "InputTokenLimitReached"),
        (Limits(max_output_tokens=100), "OutputTokenLimitReached"),
        (Limits(max_cost_micro_usd=100), "CostLimitReached"),
    ],
)
async def test_limits_hold_with_a_provider_that_reports_no_usage(limits, reason):
    turns = [Finished((ToolUse(f"tc_{n}_0", "echo", {"text": "x" * 40}),), "tool_use", Usage()) for n in range(20)]
    model = RoteModel(*turns, "Done.")

    _, sink, _, _ = await run(model, limits=limits, price=Price(input_micro_usd=1_000_000), echo=lambda text: text)

    assert sink.payloads("run.failed")[0]["reason"] == reason
    assert 1 < len(model.requests) < 6


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Finished((), "end_turn", Usage()), "EmptyAnswer"),
        (Finished((Text(" \n"),), "end_turn", Usage()), "EmptyAnswer"),
        (Finished((Text("I will not."),), "refusal", Usage()), "ModelRefused"),
        (Finished((Text("And then"),), "max_tokens", Usage()), "OutputTruncated"),
        (Finished((ToolUse("tc_x_0", "echo", {}),), "max_tokens", Usage()), "OutputTruncated"),
    ],
)
async def test_an_answer_that_is_none_fails_the_run_and_calls_nothing(answer, reason):
    _, sink, gateway, _ = await run(RoteModel(answer), echo=lambda: "x")

    assert sink.types[-2:] == ["agent.message", "run.failed"]
    assert sink.payloads("run.failed")[0]["reason"] == reason
    assert gateway.calls == []


@pytest.mark.parametrize(
    ("limits", "requests", "reason", "words"),
    [
        (Limits(max_turns=1), 1, "TurnLimitReached", "maxTurns is 1; the run has had 1"),
        (Limits(max_input_tokens=20), 2, "InputTokenLimitReached", "maxInputTokens is 20; the run has used 20"),
        (Limits(max_output_tokens=6), 2, "OutputTokenLimitReached", "maxOutputTokens is 6; the run has used 10"),
        (Limits(max_cost_micro_usd=30), 1, "CostLimitReached", "maxCostMicroUSD is 30; the run has used 30"),
        (
            Limits(max_tool_calls=1),
            2,
            "ToolCallLimitReached",
            "maxToolCalls is 1; the run has made 1 and asks for 1 more",
        ),
    ],
)
async def test_a_limit_ends_the_run_before_the_next_step_and_says_which(limits, requests, reason, words):
    model = RoteModel([use("echo", text="x")], [use("echo", text="y")], "Done.")
    if limits.max_turns:
        model = RoteModel("one", "two")

    _, sink, gateway, _ = await run(
        model,
        inbox=MemoryInbox("Again."),
        limits=limits,
        price=Price(input_micro_usd=3_000_000),
        echo=lambda text: text,
    )

    [failed] = sink.payloads("run.failed")
    assert failed["reason"] == reason
    assert words in failed["message"]
    assert len(model.requests) == requests
    assert len(gateway.executed) <= 1 or limits.max_tool_calls is None


async def test_a_run_that_uses_exactly_its_tool_calls_completes():
    model = RoteModel([use("echo", text="x"), use("echo", text="y")], "Done.")

    _, sink, _, _ = await run(model, limits=Limits(max_tool_calls=2), echo=lambda text: text)

    assert sink.types[-1] == "run.completed"


async def test_unknown_tools_and_broken_arguments_get_their_one_result_like_any_other():
    broken = ToolUse("", "echo", None, unparsable='{"text": ')
    model = RoteModel([use("no_such_tool"), broken, use("echo", text="x")], "Done.")

    _, sink, gateway, _ = await run(model, echo=lambda text: text)

    assert [each["is_error"] for each in sink.payloads("agent.tool_result")] == [True, True, False]
    assert sink.payloads("agent.message")[0]["content"][1]["input_text"] == '{"text": '
    assert len(gateway.executed) == 1


async def test_two_tool_uses_with_one_provider_id_are_two_calls():
    same = ToolUse("", "echo", {"text": "x"}, provider_id="call_1")
    model = RoteModel([same, same], [same], "Done.")

    _, sink, gateway, _ = await run(model, echo=lambda text: text)

    assert len({call.call_id for call in gateway.calls}) == 3
    assert len(sink.payloads("agent.tool_result")) == 3


async def test_every_crash_point_resumes_to_the_same_end_with_each_call_executed_once():
    """Cut the log after every event, atomic or not, and resume from what is left."""
    script = [
        {"tool_calls": [{"name": "echo", "arguments": {"text": text}} for text in "ab"]},
        {"text": "More.", "tool_calls": [{"name": "echo", "arguments": {"text": "c"}}]},
        {"text": "Done."},
        {"text": "Again done."},
    ]
    model = Model(api="Scripted", provider="test", name="scripted", script=script)
    given = snapshot().model_copy(update={"model": model})
    whole = MemorySink()
    all_ports, _, _ = ports(Scripted(model), whole, MemoryInbox("Again."), echo=lambda text: text)
    await run_turns(all_ports, given, History())
    said = [message for message in fold(whole.events).messages if isinstance(message, AssistantMessage)]

    for length in range(len(whole.events)):
        sink = MemorySink(whole.events[:length])
        all_ports, _, _ = ports(Scripted(model), sink, MemoryInbox("Again."), first_id=1000, echo=lambda text: text)
        history = fold(sink.events)
        ending = await run_turns(all_ports, given, history)

        assert (ending, sink.types[-1]) == (Ending.FINISHED, "run.completed"), f"cut after {length} events"
        assert history == fold(sink.events)
        answers = [message for message in history.messages if isinstance(message, AssistantMessage)]
        assert [answer.text for answer in answers] == [answer.text for answer in said]
        results = [each["call_id"] for each in sink.payloads("agent.tool_result")]
        assert len(results) == len(set(results)) == 3


async def test_an_answer_that_died_with_its_harness_is_aborted_with_what_was_shown():
    _, before, _, _ = await run(RoteModel("All of it."))
    cut = before.types.index("agent.message_start") + 1
    sink = MemorySink(before.events[:cut])
    message_id = sink.payloads("agent.message_start")[0]["message_id"]
    sink.live = [{"kind": "text", "message_id": message_id, "text": "All of"}]
    all_ports, _, _ = ports(RoteModel("All of it."), sink, first_id=1000)

    await run_turns(all_ports, snapshot(), fold(sink.events))

    assert sink.payloads("agent.message_aborted") == [
        {"message_id": message_id, "partial": "All of", "reason": "HarnessLost"}
    ]
    assert sink.payloads("span.model_request_end")[0]["error"] == "HarnessLost"
    assert sink.types[-1] == "run.completed"


async def test_a_fenced_harness_stops_with_the_error_and_writes_no_end():
    sink = MemorySink()
    sink.refuse, sink.refuse_after = Fenced(1, 2), 4

    with pytest.raises(Fenced):
        await run(RoteModel("Done."), sink=sink)

    assert sink.types[-1] == "agent.message_start"


async def test_a_gateway_that_refuses_a_call_fails_the_run():
    sink = MemorySink()
    all_ports, gateway, _ = ports(RoteModel([use("echo", text="x")]), sink, echo=lambda text: text)

    async def refuse(_):
        raise GatewayRefused("call tc_1_0 was claimed with other arguments")

    gateway.call = refuse

    assert await run_turns(all_ports, snapshot(), History()) is Ending.FINISHED
    assert sink.payloads("run.failed") == [
        {"reason": "GatewayRefused", "message": "call tc_1_0 was claimed with other arguments"}
    ]


async def test_an_answer_that_no_event_can_hold_is_a_fault_of_the_provider():
    _, sink, _, _ = await run(RoteModel(*["x" * (8 << 20)] * 4))

    assert sink.payloads("run.failed")[0]["reason"] == "ModelProtocolError"
    assert len(sink.payloads("agent.message_aborted")[0]["partial"]) == 65_536


@pytest.mark.parametrize(
    "answer",
    [
        Finished((Native({"type": "search", "score": float("nan")}),), "end_turn", Usage(7)),
        Finished((Native({"type": "search", "deep": nested(100_000)}),), "end_turn", Usage(7)),
        Finished((Text("x"),), "x" * (8 << 20), Usage(7)),
    ],
)
async def test_an_answer_that_is_no_json_or_too_large_in_any_part_is_a_fault_that_costs(answer):
    _, sink, _, _ = await run(RoteModel(answer, "Done."))

    assert sink.payloads("turn.retrying")[0]["reason"].startswith("ModelProtocolError: ")
    assert sink.types[-1] == "run.completed"
    assert sink.totals.input_tokens == 7 + 10


async def test_a_long_result_is_cut_and_says_so():
    _, sink, _, _ = await run(RoteModel("x" * 5000))

    result = sink.payloads("run.completed")[0]["result"]
    assert (len(result["text"]), result["truncated"]) == (4096, True)
    assert result["sha256"] == hashlib.sha256(b"x" * 5000).hexdigest()


async def test_a_prompt_of_its_own_is_not_needed_by_an_interactive_run():
    sink = MemorySink()
    all_ports, _, _ = ports(RoteModel("one"), sink, MemoryInbox("First."))

    await run_turns(all_ports, snapshot(prompt="", interactive=True), History())

    assert [started["prompt_ids"] for started in sink.payloads("turn.started")] == [["1-0"]]


@pytest.mark.parametrize(
    ("clock_moved", "slept"),
    [(0.0, [60.0]), (50.0, [10.0]), (3600.0, []), (-3600.0, [60.0])],
)
async def test_a_resumed_run_has_waited_by_the_log_and_never_less_than_nothing(clock_moved, slept):
    _, before, _, _ = await run(RoteModel("one"), interactive=True)
    all_ports, _, clock = ports(RoteModel(), before)
    history = fold(before.events)
    clock.move_to(history.waiting_since, clock_moved)

    assert await run_turns(all_ports, snapshot(interactive=True), history) is Ending.ASLEEP

    assert clock.slept == slept
    assert before.types.count("turn.waiting") == 1


async def test_an_interactive_run_that_waited_long_enough_completes_with_its_last_answer():
    sink = MemorySink()
    all_ports, _, clock = ports(RoteModel("one"), sink)
    idle = {"suspend_after_seconds": 50, "finish_after_seconds": 52}

    assert await run_turns(all_ports, snapshot(interactive=True, idle_policy=idle), History()) is Ending.FINISHED

    assert clock.slept == [50.0, 2.0]
    assert sink.payloads("run.completed")[0]["result"]["text"] == "one"


async def test_attempts_are_counted_over_all_harnesses_that_make_them():
    sink = MemorySink()
    all_ports, _, clock = ports(RoteModel(*[ModelUnavailable("down")] * 5), sink)

    async def die(seconds):
        if seconds == 8:
            raise RuntimeError("killed here")

    clock.sleep = die
    with pytest.raises(RuntimeError):
        await run_turns(all_ports, snapshot(), History())
    all_ports, _, clock = ports(RoteModel(*[ModelUnavailable("down")] * 4), sink, first_id=1000)

    await run_turns(all_ports, snapshot(), fold(sink.events))

    assert clock.slept == [16.0, 32.0, 60.0]
    assert sink.payloads("run.failed")[0]["message"] == "down (attempt 8)"


async def test_a_limit_that_broken_answers_reached_ends_the_run_before_the_next_attempt():
    fault = ModelUnavailable("cut")
    fault.usage = Usage(input_tokens=100)
    model = RoteModel(fault, "Never asked.")

    _, sink, _, _ = await run(model, limits=Limits(max_input_tokens=100))

    assert sink.payloads("run.failed")[0]["reason"] == "InputTokenLimitReached"
    assert len(model.requests) == 1


async def test_a_steering_prompt_that_comes_while_a_retry_waits_goes_into_the_next_attempt():
    inbox = MemoryInbox()
    all_ports, _, clock = ports(RoteModel(ModelUnavailable("busy"), "ok"), MemorySink(), inbox)

    async def sleep(seconds):
        inbox.post("In French.", "steer")

    clock.sleep = sleep
    await run_turns(all_ports, snapshot(), History())

    assert [message.text for message in all_ports.model.requests[1].messages] == ["Go.", "In French."]
