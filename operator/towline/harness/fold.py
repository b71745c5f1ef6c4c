"""The fold: a run's events → the history a harness goes on from. The log is the only memory; this is how it is read.

Called by `process.py` for the log it finds, and by the loop for each event it appends, so that a running harness and
one that was resumed know exactly the same. Pure. Unknown types are passed over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from towline.events.event import TERMINAL_TYPES, Event
from towline.events.totals import NOTHING, Totals
from towline.harness.transcript import AssistantMessage, Message, ToolResult, ToolUse, UserMessage, block_from

NOTHING_CONSUMED = ""
"""Cursor of a run that has taken no prompt yet, not even its own."""


@dataclass(slots=True)
class History:
    """What the log says so far.

    An aborted answer leaves no message: the model is asked again with the history it had. A turn opens with its first
    prompt, not with `turn.started`, so a log that ends between the two loses no prompt.
    """

    messages: list[Message] = field(default_factory=list)
    turn: int = 0
    """Number of the last turn started, the first is 1."""
    turn_open: bool = False
    cursor: str = NOTHING_CONSUMED
    """Id of the last prompt taken from the inbox."""
    open_calls: dict[str, ToolUse] = field(default_factory=dict)
    """Tool uses without a result, by call id, in the order they were asked for."""
    claimed: set[str] = field(default_factory=set)
    """Those of the open calls that the gateway has claimed, so they are counted already."""
    unfinished_message: str | None = None
    """Id of an answer that was begun and neither finished nor aborted."""
    waiting: bool = False
    """The last thing that happened is `turn.waiting`."""
    totals: Totals = NOTHING
    closed: str | None = None
    """Type of the terminal event."""
    _asked_in: dict[str, int] = field(default_factory=dict)
    """Call id → index of the message that asked."""

    def apply(self, type: str, data: Mapping[str, Any], turn: int | None = None) -> None:
        """Take one event into account; events come in the order of the log."""
        match type:
            case "turn.started":
                self.turn = turn or self.turn + 1
                self.waiting = False
                self.totals += Totals(turns=1)
            case "user.message":
                self.messages.append(UserMessage(data["content"]))
                self.totals += Totals(prompts=data["prompt_id"] != "0-0")
                self.cursor = data["prompt_id"]
                self.turn_open = True
            case "turn.completed":
                self.turn_open = False
            case "turn.waiting":
                self.waiting = True
            case "span.model_request_end":
                usage = data["usage"]
                self.totals += Totals(
                    input_tokens=usage["input_tokens"],
                    output_tokens=usage["output_tokens"],
                    cached_input_tokens=usage["cached_input_tokens"],
                    cost_micro_usd=data["cost_micro_usd"],
                )
            case "agent.message_start":
                self.unfinished_message = data["message_id"]
            case "agent.message_aborted":
                self.unfinished_message = None
            case "agent.message":
                self._add_answer(data)
            case "agent.tool_use":
                self._claim(data["call_id"])
            case "agent.tool_result":
                self._add_result(data)
            case _ if type in TERMINAL_TYPES:
                self.closed = type

    def _add_answer(self, data: Mapping[str, Any]) -> None:
        self.unfinished_message = None
        blocks = tuple(block_from(block) for block in data["content"])
        message = AssistantMessage(data["message_id"], blocks, data["stop_reason"])
        for use in message.tool_uses:
            self.open_calls[use.call_id] = use
            self._asked_in[use.call_id] = len(self.messages)
        self.messages.append(message)

    def _claim(self, call_id: str) -> None:
        if call_id in self.open_calls and call_id not in self.claimed:
            self.claimed.add(call_id)
            self.totals += Totals(tool_calls=1)

    def _add_result(self, data: Mapping[str, Any]) -> None:
        """The first result of a call wins; one that nobody asked for is not the model's to see."""
        call_id = data["call_id"]
        if call_id not in self.open_calls:
            return
        self._claim(call_id)
        self.claimed.discard(call_id)
        del self.open_calls[call_id]
        index = self._asked_in.pop(call_id)
        message = self.messages[index]
        assert isinstance(message, AssistantMessage)
        text = "".join(block["text"] for block in data["content"] if block["type"] == "text")
        result = ToolResult(call_id, text, data["is_error"], data["outcome"])
        self.messages[index] = replace(message, results={**message.results, call_id: result})

    @property
    def last_answer(self) -> AssistantMessage | None:
        """The model's last message, when nothing came after it but results."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, AssistantMessage) else None


def fold(events: Iterable[Event], history: History | None = None) -> History:
    """The history that `events` give: a log from its first entry on, any beginning of it, or the next page of one."""
    history = history or History()
    for event in events:
        history.apply(event.type, event.payload, event.turn)
    return history
