"""Queueing, steering and interrupting: who is heard when, and that the log and the model know the same."""

import asyncio

import pytest

from tests.unit.harness.test_loop import run, snapshot
from towline.errors import StoreUnavailable
from towline.harness.consumed import Consumed
from towline.harness.fold import History, fold
from towline.harness.loop import Ending, run_turns
from towline.harness.mail import Mail
from towline.harness.models import anthropic, openai_chat
from towline.harness.models.base import Finished, ModelUnavailable
from towline.harness.transcript import AssistantMessage, UserMessage
from towline.testing.ports import MemoryInbox, MemorySink, RoteModel, ports, use
from towline.testing.provider_rules import anthropic_problems, openai_problems


def texts(request):
    return [message.text for message in request.messages]


def accepted(model, request):
    return anthropic_problems(anthropic.body(model, request)) + openai_problems(openai_chat.body(model, request)) == []


async def test_a_steering_prompt_reaches_the_model_with_the_results_of_the_running_answer():
    inbox = MemoryInbox()

    def echo(text):
        inbox.post("In French, please.", "steer")
        return text

    model = RoteModel([use("echo", text="x")], "Voila.")
    _, sink, _, _ = await run(model, inbox=inbox, echo=echo)

    assert [type(message) for message in model.requests[1].messages] == [UserMessage, AssistantMessage, UserMessage]
    assert texts(model.requests[1])[-1] == "In French, please."
    assert sink.types.count("turn.started") == sink.types.count("turn.completed") == 1
    steered = sink.payloads("user.message")[1]
    assert steered == {
        "prompt_id": "1-0",
        "content": "In French, please.",
        "delivery": "steer",
        "sender": "",
        "key": "",
    }
    assert (sink.totals.turns, sink.totals.prompts) == (1, 1)
    assert accepted(snapshot().model, model.requests[1])


async def test_a_steering_prompt_that_comes_during_the_last_answer_is_answered_in_the_same_turn():
    class Steered(RoteModel):
        async def stream(self, request):
            if not self.requests:
                inbox.post("And the date?", "steer")
            async for event in super().stream(request):
                yield event

    inbox = MemoryInbox()
    _, sink, _, _ = await run(Steered("The time is 12.", "It is Sunday."), inbox=inbox)

    assert sink.types.count("turn.completed") == 1
    assert sink.payloads("run.completed")[0]["result"]["text"] == "It is Sunday."


async def test_without_a_running_turn_a_steering_prompt_waits_its_turn_like_any_other():
    inbox = MemoryInbox("First.")
    inbox.post("Second.", "steer")

    _, sink, _, _ = await run(RoteModel("one", "two"), inbox=inbox, interactive=True, prompt="")

    # The second was there before the first turn's request, so it went in with it.
    assert [message["content"] for message in sink.payloads("user.message")] == ["First.", "Second."]
    assert sink.payloads("turn.started") == [{"prompt_ids": ["1-0"]}]


async def test_a_steering_prompt_overtakes_an_older_one_and_each_is_taken_once():
    inbox, history = MemoryInbox("Queued."), History()
    inbox.post("Steered.", "steer")

    _, sink, _, _ = await run(RoteModel("one", "two"), inbox=inbox, history=history)

    assert [message["prompt_id"] for message in sink.payloads("user.message")] == ["0-0", "2-0", "1-0"]
    assert history.consumed == Consumed(2)
    assert history.totals.prompts == sink.totals.prompts == 2


async def test_an_interruption_breaks_a_streaming_answer_off_and_keeps_what_was_said():
    inbox = MemoryInbox("Later.")
    model = RoteModel(lambda: inbox.post("Stop. What is 2 + 2?", "interrupt"), "4", "Now that.")

    _, sink, _, _ = await run(model, inbox=inbox)

    aborted = sink.payloads("agent.message_aborted")[0]
    assert (aborted["partial"], aborted["reason"]) == ("as far as ", "Interrupted")
    assert [each["stop_reason"] for each in sink.payloads("turn.completed")] == ["interrupted", "end_turn", "end_turn"]
    assert texts(model.requests[1]) == ["Go.", "as far as ", "Stop. What is 2 + 2?"]
    assert texts(model.requests[2])[-2:] == ["4", "Later."]  # the interruption went before what waited
    assert all(accepted(snapshot().model, request) for request in model.requests)
    assert sink.payloads("span.model_request_end")[0]["error"] == "Interrupted"


async def test_an_interrupted_answer_costs_what_was_read_and_said():
    inbox = MemoryInbox()
    model = RoteModel(lambda: inbox.post("Stop.", "interrupt"), "ok")

    _, sink, _, _ = await run(model, inbox=inbox, prompt="word " * 100)

    usage = sink.payloads("span.model_request_end")[0]["usage"]
    assert usage == {"input_tokens": 125, "output_tokens": 3, "cached_input_tokens": 0}
    assert sink.totals.input_tokens == 125 + 10


async def test_an_interruption_before_the_first_word_leaves_no_message_and_a_valid_history():
    class Silent(RoteModel):
        async def stream(self, request):
            self.requests.append(request)
            if len(self.requests) == 1:
                inbox.post("Stop.", "interrupt")
                await asyncio.Event().wait()
            async for event in super().stream(request):
                yield event

    inbox, history = MemoryInbox(), History()
    model = Silent("ok")

    _, sink, _, _ = await run(model, inbox=inbox, history=history)

    assert texts(model.requests[1]) == ["Go.", "Stop."]
    assert accepted(snapshot().model, model.requests[1])
    assert history.answers == 2
    assert fold(sink.events) == history


async def test_an_interruption_cancels_the_running_call_and_those_not_asked_for():
    inbox = MemoryInbox()
    sink = MemorySink()
    model = RoteModel([use("echo"), use("echo")], "ok")
    all_ports, gateway, _ = ports(model, sink, inbox, echo=lambda: "x")

    async def hang(use):
        gateway.calls.append(use)
        inbox.post("Stop.", "interrupt")
        await asyncio.Event().wait()

    gateway.call = hang

    assert await run_turns(all_ports, snapshot(), History()) is Ending.FINISHED
    assert len(gateway.calls) == 1
    assert [each["outcome"] for each in sink.payloads("agent.tool_result")] == ["cancelled", "cancelled"]
    assert [each["stop_reason"] for each in sink.payloads("turn.completed")] == ["interrupted", "end_turn"]
    assert accepted(snapshot().model, model.requests[1])


async def test_a_call_that_ended_before_it_was_interrupted_keeps_its_result():
    inbox, sink = MemoryInbox(), MemorySink()
    all_ports, gateway, _ = ports(RoteModel([use("echo"), use("echo")], "ok"), sink, inbox, echo=lambda: "done")
    truly_call = gateway.call

    async def answer_lost(use):
        await truly_call(use)
        inbox.post("Stop.", "interrupt")
        await asyncio.Event().wait()

    gateway.call = answer_lost

    await run_turns(all_ports, snapshot(), History())

    assert [each["outcome"] for each in sink.payloads("agent.tool_result")] == ["ok", "cancelled"]


async def test_an_interruption_is_heard_though_each_call_ends_before_the_inbox_is_read():
    async def rounds(count):
        for _ in range(count):
            await asyncio.sleep(0)

    class Slow(MemoryInbox):
        async def read_after(self, cursor):
            await rounds(20)
            return await super().read_after(cursor)

    inbox, sink = Slow(), MemorySink()
    model = RoteModel([use("echo")] * 10, "ok")
    all_ports, gateway, _ = ports(model, sink, inbox, echo=lambda: "x")
    truly_call = gateway.call

    async def call(use):
        result = await truly_call(use)
        if len(gateway.calls) == 1:
            inbox.post("Stop.", "interrupt")
        await rounds(5)
        return result

    gateway.call = call

    await run_turns(all_ports, snapshot(), History())

    assert len(gateway.executed) < 10
    outcomes = [each["outcome"] for each in sink.payloads("agent.tool_result")]
    assert outcomes == ["ok"] * len(gateway.executed) + ["cancelled"] * (10 - len(gateway.executed))


async def test_an_answer_that_is_complete_is_not_interrupted_any_more():
    class Late(RoteModel):
        async def stream(self, request):
            async for event in super().stream(request):
                if isinstance(event, Finished) and len(self.requests) == 1:
                    inbox.post("Stop.", "interrupt")
                yield event

    inbox = MemoryInbox()
    model = Late("All of it.", "ok")
    _, sink, _, _ = await run(model, inbox=inbox)

    assert "agent.message_aborted" not in sink.types
    assert [each["content"][0]["text"] for each in sink.payloads("agent.message")] == ["All of it.", "ok"]
    assert [each["content"] for each in sink.payloads("user.message")] == ["Go.", "Stop."]
    assert sink.payloads("turn.completed") == [{"stop_reason": "end_turn"}] * 2


async def test_an_interruption_ends_the_pause_before_a_retry():
    inbox, sink = MemoryInbox(), MemorySink()
    all_ports, _, clock = ports(RoteModel(ModelUnavailable("busy"), "ok"), sink, inbox)

    async def sleep(seconds):
        inbox.post("Never mind.", "interrupt")
        await asyncio.Event().wait()

    clock.sleep = sleep

    await run_turns(all_ports, snapshot(), History())

    assert [each["stop_reason"] for each in sink.payloads("turn.completed")] == ["interrupted", "end_turn"]


async def test_a_prompt_that_comes_while_the_run_is_ending_is_answered_first():
    sink = MemorySink()
    inbox = MemoryInbox(sink=sink)

    all_ports, _, _ = ports(RoteModel("one", "two"), sink, inbox)
    truly_finish, tries = sink.finish, []

    async def finish(terminal, *, seen_prompt=None):
        tries.append(seen_prompt)
        if len(tries) == 1:
            inbox.post("One more.")
        await truly_finish(terminal, seen_prompt=seen_prompt)

    sink.finish = finish

    assert await run_turns(all_ports, snapshot(), History()) is Ending.FINISHED
    assert tries == [0, 1]
    assert sink.payloads("run.completed")[0]["result"]["text"] == "two"


async def test_whoever_leaves_leaves_nothing_running():
    inbox, left = MemoryInbox(), asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    before = asyncio.all_tasks()
    mail = Mail(inbox, "Go.", History())
    leaving = asyncio.ensure_future(mail.unless_interrupted(work()))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])

    assert left.is_set()
    assert asyncio.all_tasks() == before


async def test_a_store_that_is_away_interrupts_nothing():
    inbox = MemoryInbox()

    async def away(cursor):
        raise StoreUnavailable("away")

    async def work():
        inbox.read_after = away
        inbox.post("Stop.", "interrupt")
        for _ in range(5):
            await asyncio.sleep(0)
        return "done"

    assert await Mail(inbox, "Go.", History()).unless_interrupted(work()) == "done"


async def test_of_thousands_of_queued_prompts_the_interruption_is_found():
    inbox = MemoryInbox(*[f"Prompt {n}." for n in range(3000)])
    inbox.post("First of all.", "interrupt")
    limits_reached = snapshot(interactive=True, limits={"max_turns": 2})
    sink = MemorySink()
    all_ports, _, _ = ports(RoteModel("ok"), sink, inbox)

    await run_turns(all_ports, limits_reached, History())

    assert [each["prompt_ids"] for each in sink.payloads("turn.started")] == [["0-0"], ["3001-0"]]


@pytest.mark.parametrize(
    ("numbers", "compact"),
    [([], [-1]), ([0], [0]), ([0, 1, 2], [2]), ([0, 2], [0, 2]), ([0, 2, 1], [2]), ([5, 3], [0, 3, 5])],
)
def test_taken_prompts_are_kept_in_compact_form(numbers, compact):
    consumed = Consumed()
    for number in numbers:
        consumed = consumed.with_prompt(number)

    assert consumed.as_list() == compact
    assert Consumed.from_list(compact) == consumed
    assert all(number in consumed for number in numbers)
    assert 4 not in consumed
