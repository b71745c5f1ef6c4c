"""No request is larger than the model's context has room for beside the answer, however much the tools print."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.harness.test_loop import snapshot
from towline.api.snapshot import Model
from towline.clock import utc_now
from towline.events.event import draft
from towline.harness.compaction import continued
from towline.harness.fitting import fitted, left_out
from towline.harness.fold import History, fold
from towline.harness.loop import run_turns
from towline.harness.models import anthropic, openai_chat
from towline.harness.models.base import Finished, Tool, Usage
from towline.harness.sizes import request_tokens
from towline.harness.transcript import AssistantMessage, Text, ToolResult, ToolUse, UserMessage, call_id, characters
from towline.testing.ports import MemorySink, ports
from towline.testing.provider_rules import anthropic_problems, openai_problems

MODEL = Model(api="AnthropicMessages", provider="test", name="m", context_tokens=8000, max_output_tokens=2000)
ROOM = 6000


def called(number, *results):
    """An answer with tool uses, each with the result given."""
    uses = [ToolUse(call_id(f"msg_{number}", place), "print", {}) for place in range(len(results))]
    given = {use.call_id: ToolResult(use.call_id, text) for use, text in zip(uses, results, strict=True)}
    return AssistantMessage(f"msg_{number}", tuple(uses), "tool_use", given)


def results_of(message):
    return [result.text for result in message.results.values()]


def test_the_largest_results_lose_their_middle_and_say_how_much_of_it():
    messages = [UserMessage("Go."), called(1, "A" * 2000 + "B" * 2000, "short", "C" * 3000)]
    budget = sum(map(characters, messages)) - 5000

    sent = fitted(messages, budget)

    first, second, third = results_of(sent[1])
    assert (sent[0], second) == (messages[0], "short")
    assert (len(first), len(third)) == (982, 982)
    assert (
        first.strip("AB")
        == f"\n[… {4000 - first.count('A') - first.count('B')} characters left out: the conversation is too long …]\n"
    )
    assert first.count("A") == first.count("B") > 400
    assert budget - 40 < sum(map(characters, sent)) <= budget
    assert left_out(messages, sent) == 7000 - 982 * 2


def test_what_fits_stays_as_it_is():
    messages = (UserMessage("Go."), called(1, "x" * 3000))

    assert fitted(messages, sum(map(characters, messages))) == messages


@given(st.lists(st.lists(st.integers(0, 3000), max_size=4), max_size=5), st.integers(0, 20_000))
def test_results_give_way_down_to_nothing_and_nothing_else_does(sizes, budget):
    messages = [called(number, *("x" * size for size in each)) for number, each in enumerate(sizes)]
    bare = [called(number, *("" for _ in each)) for number, each in enumerate(sizes)]

    sent = fitted(messages, budget)

    assert sum(map(characters, sent)) <= max(budget, sum(map(characters, bare)))
    assert [message.blocks for message in sent] == [message.blocks for message in messages]
    assert fitted(messages, budget) == sent


class Worker:
    """Prints so much with each answer's tools, then says that it is done. Tells the usage, or does not."""

    def __init__(self, sizes, *, counts):
        self.requests = []
        self._sizes, self._counts = sizes, counts

    async def stream(self, request):
        self.requests.append(request)
        usage = Usage(request_tokens(request), 50) if self._counts else Usage()
        sizes = self._sizes[request.answers] if request.answers < len(self._sizes) else ()
        if request.purpose == "summary" or not sizes:
            yield Finished((Text("That is all."),), "end_turn", usage)
            return
        uses = [ToolUse(call_id(request.message_id, n), "print", {"size": size}) for n, size in enumerate(sizes)]
        yield Finished(tuple(uses), "tool_use", usage)


async def worked(sizes, *, counts, sink=None, first_id=1):
    worker, sink = Worker(sizes, counts=counts), sink or MemorySink()
    all_ports, gateway, _ = ports(worker, sink, first_id=first_id, print=lambda size: "x" * size)
    gateway.offered = (Tool("print", "It prints. " * 400, {"type": "object"}),)
    given_snapshot = snapshot(system_prompt="Be brief. " * 100).model_copy(update={"model": MODEL})
    await run_turns(all_ports, given_snapshot, fold(sink.events))
    return worker, sink


@settings(max_examples=80)
@given(st.lists(st.lists(st.integers(0, 40_000), min_size=1, max_size=3), max_size=6), st.booleans())
def test_every_request_leaves_room_for_the_answer_and_is_one_that_providers_accept(sizes, counts):
    worker, sink = asyncio.run(worked(sizes, counts=counts))

    assert sink.types[-1] == "run.completed"
    for request in worker.requests:
        assert request_tokens(request) <= ROOM
        assert anthropic_problems(anthropic.body(MODEL, request)) == []
        assert openai_problems(openai_chat.body(MODEL, request)) == []


async def test_a_batch_that_exceeds_the_context_is_sent_shortened_and_kept_whole():
    worker, sink = await worked([[40_000] * 4, [10]], counts=True)

    sent = [len(text) for text in results_of(worker.requests[1].messages[-1])]
    assert max(sent) < 5000
    assert all(len(each["content"][0]["text"]) == 40_000 for each in sink.payloads("agent.tool_result")[:4])
    asked = sink.payloads("span.model_request_start")
    assert asked[0]["left_out"] == 0
    assert asked[1]["left_out"] == 160_000 - sum(sent)
    # The provider counted the shortened conversation, which must not be taken for the whole one.
    assert request_tokens(worker.requests[2]) <= ROOM


async def test_what_no_provider_has_counted_yet_is_counted_with_prompt_and_tools():
    source = History(messages=[UserMessage("Go."), called(1, "x" * 20_000)])
    sink = MemorySink()
    sink.write("harness", [draft("context.compacted", continued(source, {"uid": "u", "seq": 1}), now=utc_now())])

    worker, _ = await worked([], counts=True, sink=sink)

    first = worker.requests[0]
    assert first.left_out > 0
    assert request_tokens(first) <= ROOM


async def test_a_harness_that_resumes_sends_what_the_dead_one_sent():
    sizes = [[9_000] * 3, [4_000], [30_000], [10]]
    worker, sink = await worked(sizes, counts=True)

    starts = [place for place, type in enumerate(sink.types) if type == "span.model_request_start"]
    assert any(request.left_out for request in worker.requests)
    for place, request in zip(starts, worker.requests, strict=True):
        successor, _ = await worked(sizes, counts=True, sink=MemorySink(sink.events[:place]), first_id=1000)
        assert successor.requests[0].messages == request.messages
        assert successor.requests[0].left_out == request.left_out


async def test_the_history_of_a_request_that_was_shortened_is_that_of_its_log():
    history, sink = History(), MemorySink()
    all_ports, _, _ = ports(Worker([[40_000] * 4], counts=True), sink, print=lambda size: "x" * size)

    await run_turns(all_ports, snapshot().model_copy(update={"model": MODEL}), history)

    assert fold(sink.events) == history
    assert history.request_characters < history.characters - 100_000


@pytest.mark.parametrize("counts", [True, False])
async def test_a_conversation_with_room_is_sent_as_it_is(counts):
    _, sink = await worked([[5000], [5000]], counts=counts)

    assert [each["left_out"] for each in sink.payloads("span.model_request_start")] == [0, 0, 0]
