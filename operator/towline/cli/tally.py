"""What a run used, counted from its events, so that a failed or cancelled run has its figures too. Pure."""

from datetime import datetime

from towline.events.event import Event


class Tally:
    """Sums over the events it was given."""

    def __init__(self) -> None:
        self.turns = 0
        self.tool_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_micro_usd = 0
        self.milliseconds = 0.0
        self._first: datetime | None = None

    def add(self, event: Event) -> None:
        """Counts one event; each is to be given once."""
        moment = datetime.fromisoformat(event.time)
        self._first = self._first or moment
        self.milliseconds = (moment - self._first).total_seconds() * 1000
        if event.type == "turn.started":
            self.turns += 1
        elif event.type == "agent.tool_use":
            self.tool_calls += 1
        elif event.type == "span.model_request_end":
            usage = event.payload.get("usage") or {}
            self.input_tokens += usage.get("input_tokens") or 0
            self.output_tokens += usage.get("output_tokens") or 0
            self.cost_micro_usd += event.payload.get("cost_micro_usd") or 0
