"""The fold: a run's events → the history a harness goes on from. The log is the only memory; this is how it is read.

Called by `reading.py` for the log it finds, and by the loop for each event it appends, so that a running harness and
one that was resumed know exactly the same. It may begin at any `context.compacted`. Pure. Unknown types are ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from towline.events.event import TERMINAL_TYPES, Event
from towline.events.totals import FIELDS, NOTHING, Totals
from towline.harness.consumed import NOTHING_CONSUMED, OWN_PROMPT_ID, Consumed, number_of
from towline.harness.transcript import (
    AssistantMessage,
    Message,
    Text,
    ToolResult,
    ToolUse,
    UserMessage,
    block_from,
    characters,
    message_from,
)

INTERRUPTED = "Interrupted"
"""Reason of `agent.message_aborted` when a person broke the answer off: what was said until then was said."""

SUMMARY_HEAD = "Summary of the conversation until here, which was too long to be kept in full:\n\n"


@dataclass(slots=True)
class History:
    """What the log says so far.

    An aborted answer leaves no message, unless a person interrupted it: the model is asked again with the history it
    had. A turn opens with its first prompt, not with `turn.started`: a log that ends between the two loses no prompt.
    """

    messages: list[Message] = field(default_factory=list)
    turn: int = 0
    """Number of the last turn started, the first is 1."""
    turn_open: bool = False
    turn_at: int = 0
    """Index of the message that the last turn started with."""
    turn_prompts: list[str] = field(default_factory=list)
    """Ids of the prompts that the last turn started has taken."""
    consumed: Consumed = NOTHING_CONSUMED
    """The prompts that were taken."""
    open_calls: dict[str, ToolUse] = field(default_factory=dict)
    """Tool uses without a result, by call id, in the order they were asked for."""
    claimed: set[str] = field(default_factory=set)
    """Those of the open calls that the gateway has claimed, so they are counted already."""
    unfinished_request: str | None = None
    """Message id of a model request that was begun and has no end."""
    unfinished_message: str | None = None
    """Id of an answer that was begun and neither finished nor aborted."""
    answers: int = 0
    """How many answers the model gave, interrupted ones included."""
    characters: int = 0
    """Length of all messages."""
    request_tokens: int = 0
    """Input and output of the last request that was answered: what the history was worth then."""
    request_characters: int = 0
    """Length of what was counted there: of all messages until then, less what was not sent of them."""
    failed_attempts: int = 0
    """Of the model request that is due, over all harnesses."""
    waiting_since: str = ""
    """Time of `turn.waiting`, when that is the last thing that happened."""
    begun: bool = False
    """The run has done something, or has taken over another's history."""
    totals: Totals = NOTHING
    closed: str | None = None
    """Type of the terminal event."""
    _asked_in: dict[str, int] = field(default_factory=dict)
    """Call id → index of the message that asked."""
    _left_out: int = 0
    """Characters that the last request did without."""

    def apply(self, type: str, data: Mapping[str, Any], turn: int | None = None, time: str = "") -> None:
        """Take one event into account; events come in the order of the log."""
        match type:
            case "turn.started":
                self.begun = True
                self.turn = turn or self.turn + 1
                self.turn_at = len(self.messages)
                self.turn_prompts = []
                self.waiting_since = ""
                self.failed_attempts = 0
                self.totals += Totals(turns=1)
            case "user.message":
                self._add_prompt(data)
            case "turn.completed":
                self.turn_open = False
            case "turn.retrying":
                self.failed_attempts = data.get("attempt", 0)
            case "turn.waiting":
                self.waiting_since = time
            case "span.model_request_start":
                self.unfinished_request = data["message_id"]
                self._left_out = data.get("left_out", 0)
            case "span.model_request_end":
                self._end_request(data)
            case "agent.message_start":
                self.unfinished_message = data["message_id"]
            case "agent.message_aborted":
                self._abort(data)
            case "agent.message":
                self._add_answer(data)
            case "agent.tool_use":
                self._claim(data["call_id"])
            case "agent.tool_result":
                self._add_result(data)
            case "context.compacted":
                self._begin_with(data)
            case _ if type in TERMINAL_TYPES:
                self.closed = type

    def _add_prompt(self, data: Mapping[str, Any]) -> None:
        self.begun = True
        self._add(UserMessage(data["content"]))
        self.consumed = self.consumed.with_prompt(number_of(data["prompt_id"]))
        self.turn_prompts.append(data["prompt_id"])
        self.totals += Totals(prompts=data["prompt_id"] != OWN_PROMPT_ID)
        self.turn_open = True

    def _end_request(self, data: Mapping[str, Any]) -> None:
        usage = data["usage"]
        self.unfinished_request = None
        if data.get("error") is None:
            self.request_tokens = usage["input_tokens"] + usage["output_tokens"]
        self.totals += Totals(
            input_tokens=usage["input_tokens"],
            output_tokens=usage["output_tokens"],
            cached_input_tokens=usage["cached_input_tokens"],
            cost_micro_usd=data["cost_micro_usd"],
        )

    def _abort(self, data: Mapping[str, Any]) -> None:
        self.unfinished_message = None
        if data.get("reason") != INTERRUPTED:
            return
        self.answers += 1
        if data["partial"].strip():
            self._add(AssistantMessage(data["message_id"], (Text(data["partial"]),), "interrupted"))

    def _add_answer(self, data: Mapping[str, Any]) -> None:
        self.unfinished_message = None
        self.failed_attempts = 0
        self.answers += 1
        blocks = tuple(block_from(block) for block in data["content"])
        message = AssistantMessage(data["message_id"], blocks, data["stop_reason"])
        for use in message.tool_uses:
            self.open_calls[use.call_id] = use
            self._asked_in[use.call_id] = len(self.messages)
        self._add(message)
        self.request_characters = self.characters - self._left_out

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self.characters += characters(message)

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
        self.characters += len(text)

    def _begin_with(self, data: Mapping[str, Any]) -> None:
        """What went before no longer matters: the event holds all that does. No call is open where it stands."""
        self.begun = True
        self.messages = [UserMessage(SUMMARY_HEAD + data["summary"])] if data["summary"] else []
        self.turn_at = len(self.messages) + data["turn_at"]
        self.messages += [message_from(message) for message in data["kept"]]
        self.characters = sum(characters(message) for message in self.messages)
        self.turn, self.turn_open = data["turn"], data["turn_open"]
        self.turn_prompts = list(data.get("turn_prompts", ()))
        self.consumed = Consumed.from_list(data["consumed"])
        self.answers = data["answers"]
        self.totals = Totals(**{name: data["totals"].get(name, 0) for name in FIELDS})
        self.request_tokens = self.request_characters = self._left_out = self.failed_attempts = 0
        self.unfinished_request = self.unfinished_message = None
        self.open_calls, self.claimed, self._asked_in = {}, set(), {}

    @property
    def last_answer(self) -> AssistantMessage | None:
        """The model's last message, when nothing came after it but results."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, AssistantMessage) else None


def fold(events: Iterable[Event], history: History | None = None) -> History:
    """The history that `events` give: a log from its first entry or a `context.compacted` on; or its next page."""
    history = history or History()
    for event in events:
        history.apply(event.type, event.payload, event.turn, event.time)
    return history
