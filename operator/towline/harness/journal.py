"""Appends events and takes each into the history at once: the loop writes only through this.

So the history of a running harness is always the fold of its log, by construction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from towline.events.event import draft
from towline.events.totals import NOTHING, Totals
from towline.harness.fold import History
from towline.harness.ports import Clock, Sink
from towline.harness.transcript import ToolResult, ToolUse


@dataclass(frozen=True, slots=True)
class Fact:
    """An event to be: its type and data."""

    type: str
    data: Mapping[str, Any]


class Journal:
    """The one writer of a run's history."""

    def __init__(self, sink: Sink, clock: Clock, history: History) -> None:
        self.history = history
        self._sink = sink
        self._clock = clock

    async def append(self, *facts: Fact, totals: Totals = NOTHING, turn: int | None = None) -> None:
        """All of them or none. They belong to `turn`, by default the current one."""
        number = turn or self.history.turn or None
        now = self._clock.now()
        drafts = [draft(fact.type, fact.data, now=now, turn=number) for fact in facts]
        await self._sink.append(drafts, totals)
        for fact, written in zip(facts, drafts, strict=True):
            self.history.apply(fact.type, fact.data, number, written.time)

    def adopt(self, use: ToolUse, result: ToolResult) -> None:
        """Take a result into the history; the gateway has recorded it in the log."""
        content = [{"type": "text", "text": result.text}]
        data = {"call_id": use.call_id, "content": content, "is_error": result.is_error, "outcome": result.outcome}
        self.history.apply("agent.tool_result", data)

    async def finish(self, fact: Fact, *, seen_prompt: int | None = None) -> None:
        """Append the terminal event and close the log. Contract: `ports.Sink.finish`."""
        await self._sink.finish(draft(fact.type, fact.data, now=self._clock.now()), seen_prompt=seen_prompt)
        self.history.apply(fact.type, fact.data)
