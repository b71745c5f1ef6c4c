"""In-memory ports for the harness' loop: a log, a gateway, an inbox and a clock that never wait, and a model by rote.

For tests of the loop, ours and those of whoever writes another harness. Each is a small real thing with state to look
at afterwards; none has expectations of its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from towline.errors import PromptsUnread
from towline.events.event import Draft, Event, RunRef, draft
from towline.events.totals import NOTHING, Totals
from towline.harness.models.base import Finished, Model, ModelFault, Request, StreamEvent, TextDelta, Tool, Usage
from towline.harness.ports import Ports
from towline.harness.transcript import Block, Text, ToolResult, ToolUse, call_id
from towline.inbox import Prompt

RUN = RunRef("default", "00000000-0000-4000-8000-000000000000", "run")


class MemoryClock:
    """Starts at a fixed moment; sleeping moves it and takes no time. Message ids count up from `first_id`."""

    def __init__(self, first_id: int = 1) -> None:
        self.slept: list[float] = []
        self._seconds = 0.0
        self._next_id = first_id

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    def move_to(self, time: str, seconds: float = 0.0) -> None:
        """The wall clock's hands, to so long after `time`."""
        self._seconds = (datetime.fromisoformat(time) - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds() + seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._seconds += seconds

    def new_message_id(self) -> str:
        self._next_id += 1
        return f"msg_{self._next_id - 1:012x}"


class MemorySink:
    """A log and a live stream. `refuse` is raised by the append after `refuse_after` events, as a store would."""

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self.batches: list[list[str]] = []
        """Event types, append by append."""
        self.totals = NOTHING
        self.live: list[dict[str, Any]] = []
        self.refuse: Exception | None = None
        self.refuse_after = 0
        self.posted = 0
        """Number of the last prompt that a run's inbox took."""

    async def append(self, drafts: Sequence[Draft], totals: Totals = NOTHING) -> None:
        self._put(drafts, totals)

    def _put(self, drafts: Sequence[Draft], totals: Totals) -> None:
        if self.refuse is not None and len(self.events) >= self.refuse_after:
            raise self.refuse
        self.batches.append([each.type for each in drafts])
        self.totals += totals
        self.write("harness", drafts)

    async def finish(self, terminal: Draft, *, seen_prompt: int | None = None) -> None:
        if seen_prompt is not None and self.posted > seen_prompt:
            raise PromptsUnread(self.posted - seen_prompt)
        self._put([terminal], NOTHING)

    def write(self, src: str, drafts: Sequence[Draft]) -> None:
        """What another writer of the log, such as the gateway, adds."""
        for each in drafts:
            seq = len(self.events) + 1
            self.events.append(
                Event(seq, each.id, each.type, RUN, each.turn, each.time, src=src, epoch=1, data=each.data)
            )

    @asynccontextmanager
    async def deltas(self, message_id: str) -> AsyncGenerator["MemoryDeltas", None]:
        yield MemoryDeltas(self.live, message_id)

    async def recovered_text(self, message_id: str) -> str:
        ours = [delta for delta in self.live if delta["message_id"] == message_id and delta["kind"] == "text"]
        return "".join(delta["text"] for delta in ours)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def payloads(self, type: str) -> list[dict[str, Any]]:
        """The data of every event of a type, in order."""
        return [event.payload for event in self.events if event.type == type]


class MemoryDeltas:
    """One delta a word."""

    def __init__(self, live: list[dict[str, Any]], message_id: str) -> None:
        self._live, self._message_id = live, message_id

    async def add(self, kind: str, text: str) -> None:
        self._live.append({"kind": kind, "message_id": self._message_id, "text": text})


class MemoryGateway:
    """Tools as plain functions of their arguments. Its ledger is the log in `sink`: one claim, one result a call id."""

    def __init__(self, sink: MemorySink, clock: MemoryClock, **tools: Callable[..., str]) -> None:
        self.offered = tuple(Tool(name, f"The tool {name}.", {"type": "object"}) for name in tools)
        self.calls: list[ToolUse] = []
        """Every request, repeated ones included."""
        self.executed: list[str] = []
        """Call ids that reached a tool."""
        self.cancelled: list[str] = []
        self._sink, self._clock, self._tools = sink, clock, tools

    async def call(self, use: ToolUse) -> ToolResult:
        self.calls.append(use)
        for data in self._recorded("agent.tool_result", use):
            return ToolResult(use.call_id, data["content"][0]["text"], data["is_error"], data["outcome"])
        if not self._recorded("agent.tool_use", use):
            self._write("agent.tool_use", {"call_id": use.call_id, "name": use.name, "input": use.arguments or {}})
        return self._settle(use, self._execute(use))

    def _settle(self, use: ToolUse, result: ToolResult) -> ToolResult:
        recorded = {"call_id": use.call_id, "name": use.name, "outcome": result.outcome, "is_error": result.is_error}
        self._write("agent.tool_result", {**recorded, "content": [{"type": "text", "text": result.text}]})
        return result

    async def cancel(self, use: ToolUse) -> ToolResult:
        self.cancelled.append(use.call_id)
        for data in self._recorded("agent.tool_result", use):
            return ToolResult(use.call_id, data["content"][0]["text"], data["is_error"], data["outcome"])
        if not self._recorded("agent.tool_use", use):
            self._write("agent.tool_use", {"call_id": use.call_id, "name": use.name, "input": use.arguments or {}})
        return self._settle(use, ToolResult(use.call_id, "Cancelled.", is_error=True, outcome="cancelled"))

    def _recorded(self, type: str, use: ToolUse) -> list[dict[str, Any]]:
        return [data for data in self._sink.payloads(type) if data["call_id"] == use.call_id]

    def _execute(self, use: ToolUse) -> ToolResult:
        if use.arguments is None:
            return ToolResult(use.call_id, "the arguments are not a JSON object", is_error=True, outcome="error")
        if use.name not in self._tools:
            return ToolResult(use.call_id, f"there is no tool {use.name}", is_error=True, outcome="error")
        self.executed.append(use.call_id)
        return ToolResult(use.call_id, self._tools[use.name](**use.arguments))

    def _write(self, type: str, data: Mapping[str, Any]) -> None:
        self._sink.write("gateway", [draft(type, data, now=self._clock.now())])


class MemoryInbox:
    """Prompts by number. `sink` is told of each, as one store knows both."""

    def __init__(self, *contents: str, sink: MemorySink | None = None) -> None:
        self.prompts: list[Prompt] = []
        self._sink = sink
        self._news = asyncio.Event()
        for content in contents:
            self.post(content)

    def post(self, content: str, delivery: str = "queue") -> Prompt:
        prompt = Prompt(f"{len(self.prompts) + 1}-0", content, delivery, "", "")
        self.prompts.append(prompt)
        if self._sink is not None:
            self._sink.posted = prompt.number
        self._news.set()
        return prompt

    async def read_after(self, cursor: str) -> Sequence[Prompt]:
        return self.prompts[int(cursor.partition("-")[0]) :]

    async def news(self) -> None:
        await self._news.wait()
        self._news.clear()


Turn = str | Sequence[Block] | Finished | ModelFault | Callable[[], None]
"""What a model by rote does next: say a text, answer with blocks, answer in full, or fail; or say a few words, do
something (post a prompt), and say no more."""


class RoteModel:
    """Takes its turns in the order given, whatever it is asked; keeps the requests."""

    def __init__(self, *turns: Turn) -> None:
        self.requests: list[Request] = []
        self._turns = list(turns)

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        self.requests.append(request)
        turn = self._turns.pop(0)
        if callable(turn):
            yield TextDelta("as far as ")
            turn()
            await asyncio.Event().wait()
            return
        if isinstance(turn, ModelFault):
            yield TextDelta("half an ")
            raise turn
        answer = turn if isinstance(turn, Finished) else _finished(turn, request.message_id)
        for block in answer.blocks:
            if isinstance(block, Text):
                yield TextDelta(block.text)
        yield answer


def _finished(turn: str | Sequence[Block], message_id: str) -> Finished:
    blocks = [Text(turn)] if isinstance(turn, str) else list(turn)
    uses = sum(isinstance(block, ToolUse) for block in blocks)
    return Finished(
        tuple(_with_id(block, message_id, position) for position, block in enumerate(blocks)),
        "tool_use" if uses else "end_turn",
        Usage(input_tokens=10, output_tokens=5),
    )


def _with_id(block: Block, message_id: str, position: int) -> Block:
    if not isinstance(block, ToolUse):
        return block
    return ToolUse(call_id(message_id, position), block.name, block.arguments, block.unparsable, block.provider_id)


def use(name: str, **arguments: Any) -> ToolUse:
    """A tool use for RoteModel, which gives it its call id."""
    return ToolUse("", name, arguments)


def ports(
    model: Model, sink: MemorySink, inbox: MemoryInbox | None = None, *, first_id: int = 1, **tools: Callable[..., str]
) -> tuple[Ports, MemoryGateway, MemoryClock]:
    """Ports over the fakes above, and the two of them that a test may want to look at."""
    clock = MemoryClock(first_id)
    gateway = MemoryGateway(sink, clock, **tools)
    return Ports(model, gateway, sink, inbox or MemoryInbox(), clock), gateway, clock
