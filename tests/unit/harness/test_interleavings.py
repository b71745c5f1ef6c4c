"""Whatever comes when, and wherever a harness dies: every prompt is taken once, every call runs once, and the model is
only ever sent what its provider accepts."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.harness.test_loop import snapshot
from towline.api.snapshot import Model
from towline.events.totals import NOTHING
from towline.harness.fold import fold
from towline.harness.loop import Ending, run_turns
from towline.harness.models import anthropic, openai_chat
from towline.harness.models.base import Finished, TextDelta, Usage
from towline.harness.transcript import AssistantMessage, Text, ToolUse, UserMessage, call_id
from towline.testing.ports import MemoryInbox, MemorySink, ports
from towline.testing.provider_rules import anthropic_problems, openai_problems

ROOMY = Model(api="AnthropicMessages", provider="test", name="m")
TIGHT = ROOMY.model_copy(update={"context_tokens": 800})


class Killed(Exception):
    """The process died here."""


@dataclass
class World:
    """Counts what happens, and makes things happen at their moment: a prompt is posted, a harness dies."""

    posts: dict[int, list[str]] = field(default_factory=dict)
    deaths: frozenset[int] = frozenset()
    moment: int = 0

    def __post_init__(self):
        self.sink = DyingSink(self)
        self.inbox = MemoryInbox(sink=self.sink)

    def tick(self):
        self.moment += 1
        for delivery in self.posts.pop(self.moment, ()):
            self.inbox.post(f"Prompt at {self.moment}.", delivery)
        if self.moment in self.deaths:
            raise Killed


class DyingSink(MemorySink):
    """Dies before an append, or when it is done and nobody has heard of it."""

    def __init__(self, world):
        super().__init__()
        self._world = world

    async def append(self, drafts, totals=NOTHING):
        self._world.tick()
        await super().append(drafts, totals)
        self._world.tick()

    async def finish(self, terminal, *, seen_prompt=None):
        self._world.tick()
        await super().finish(terminal, seen_prompt=seen_prompt)


class Talker:
    """Says who it answers, uses two tools, then says the answer: decided by what it is sent alone."""

    def __init__(self, world, model):
        self._world, self._model = world, model
        self.requests = 0

    async def stream(self, request):
        self.requests += 1
        assert anthropic_problems(anthropic.body(self._model, request)) == []
        assert openai_problems(openai_chat.body(self._model, request)) == []
        prompts = [message.text for message in request.messages if isinstance(message, UserMessage)]
        working = isinstance(request.messages[-1], UserMessage) and request.purpose == "answer"
        text = f"{'Working on' if working else 'Done with'} {prompts[-1][-40:]}"
        for word in text.split(" "):
            self._world.tick()
            await asyncio.sleep(0)
            yield TextDelta(word + " ")
        uses = [ToolUse(call_id(request.message_id, n), "echo", {"text": "x" * 40}) for n in range(2 * working)]
        yield Finished((Text(text), *uses), "tool_use" if uses else "end_turn", Usage(1, 1))


async def lived(world, model, *, interactive=False):
    """The run to its end, by as many harnesses as it takes."""
    given_snapshot = snapshot(interactive=interactive).model_copy(update={"model": model})
    executed = []

    def echo(text):
        world.tick()
        executed.append(text)
        return text

    for life in range(len(world.deaths) + 1):
        talker = Talker(world, model)
        all_ports, _, _ = ports(talker, world.sink, world.inbox, first_id=1 + 1000 * life, echo=echo)
        history = fold(world.sink.events)
        assert history.messages == fold(world.sink.events[start(world.sink) :]).messages
        try:
            async with asyncio.timeout(20):
                ending = await run_turns(all_ports, given_snapshot, history)
        except Killed:
            continue
        assert history == fold(world.sink.events)
        return ending, history
    raise AssertionError("no harness came to the end")


def start(sink):
    """Where a resuming harness begins to read."""
    places = [place for place, type in enumerate(sink.types) if type == "context.compacted"]
    return places[-1] if places else 0


moments = st.integers(1, 120)
deliveries = st.sampled_from(["queue", "steer", "interrupt"])
posts = st.dictionaries(moments, st.lists(deliveries, min_size=1, max_size=3), max_size=5)
deaths = st.frozensets(moments, max_size=6)


@settings(max_examples=150)
@given(posts, deaths, st.sampled_from([ROOMY, TIGHT]))
def test_every_prompt_is_taken_once_and_every_request_is_valid(posts, deaths, model):
    world = World(dict(posts), deaths)

    ending, history = asyncio.run(lived(world, model))

    taken = [message["prompt_id"] for message in world.sink.payloads("user.message")]
    assert sorted(taken) == sorted(["0-0", *(prompt.id for prompt in world.inbox.prompts)])
    assert ending is Ending.FINISHED
    assert world.sink.types.count("run.completed") == 1
    assert world.sink.totals.prompts == history.totals.prompts == len(world.inbox.prompts)
    assert world.sink.types.count("turn.started") == world.sink.types.count("turn.completed") == history.totals.turns
    results = [result["call_id"] for result in world.sink.payloads("agent.tool_result")]
    uses = [block["call_id"] for said in world.sink.payloads("agent.message") for block in said["content"][1:]]
    assert sorted(results) == sorted(set(results)) == sorted(uses)
    begun = [event["message_id"] for event in world.sink.payloads("span.model_request_start")]
    ended = [event["message_id"] for event in world.sink.payloads("span.model_request_end")]
    assert begun == ended


@settings(max_examples=60)
@given(st.lists(moments, max_size=4), deaths, st.sampled_from([ROOMY, TIGHT]))
def test_a_run_that_died_says_what_one_that_lived_says(queued, deaths, model):
    """With prompts that wait their turn, so that the moment they come at changes nothing."""

    def conversation(deaths):
        world = World(deaths=deaths)
        for number in range(len(queued)):
            world.inbox.post(f"Prompt {number}.")
        _, history = asyncio.run(lived(world, model))
        return [type(message) for message in history.messages], [
            message.text for message in history.messages if isinstance(message, AssistantMessage)
        ]

    assert conversation(deaths) == conversation(frozenset())


@settings(max_examples=40)
@given(posts, deaths)
def test_an_interactive_run_falls_asleep_with_every_prompt_answered(posts, deaths):
    world = World(dict(posts), deaths)

    ending, history = asyncio.run(lived(world, ROOMY, interactive=True))

    assert ending is Ending.ASLEEP
    assert history.consumed.last == len(world.inbox.prompts) == history.consumed.count
    assert world.sink.types[-1] == "turn.waiting" or history.waiting_since
