"""What a run used, counted from its events, so that a failed or cancelled run has its figures too. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from towline.events.event import Event


@dataclass(slots=True)
class Figures:
    """What a run used from its beginning on."""

    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micro_usd: int = 0


def figures_of(completed: Mapping[str, Any]) -> Figures | None:
    """What `run.completed` tells; None when it does not, as a log from elsewhere may not."""
    try:
        usage = completed["usage"]
        return Figures(
            turns=int(completed["turns"]),
            tool_calls=int(completed["tool_calls"]),
            input_tokens=int(usage["input_tokens"]),
            output_tokens=int(usage["output_tokens"]),
            cost_micro_usd=int(completed["cost_micro_usd"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


class Tally:
    """Sums over the events it was given; of use only to whoever gives it all of them, each once."""

    def __init__(self) -> None:
        self._sums = Figures()
        self._whole = True
        self._seq = 0
        self._first: datetime | None = None
        self._last: datetime | None = None

    def add(self, event: Event) -> None:
        """Counts one event. One that does not follow the last ends the counting: there was more, or it came again."""
        self._whole = self._whole and event.seq == self._seq + 1
        self._seq = event.seq
        self._last = datetime.fromisoformat(event.time)
        if event.seq == 1:
            self._first = self._first or self._last
        if event.type == "turn.started":
            self._sums.turns += 1
        elif event.type == "agent.tool_use":
            self._sums.tool_calls += 1
        elif event.type == "span.model_request_end":
            usage = event.payload.get("usage") or {}
            self._sums.input_tokens += usage.get("input_tokens") or 0
            self._sums.output_tokens += usage.get("output_tokens") or 0
            self._sums.cost_micro_usd += event.payload.get("cost_micro_usd") or 0

    @property
    def figures(self) -> Figures | None:
        """None when not all of the run was given, or some of it twice."""
        return self._sums if self._whole else None

    @property
    def milliseconds(self) -> float | None:
        """From the first event of the run to the last that was given; None without the first."""
        if self._first is None or self._last is None:
            return None
        return (self._last - self._first).total_seconds() * 1000
