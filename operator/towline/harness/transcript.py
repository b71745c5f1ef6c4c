"""The conversation in neutral form: what the fold builds and the model adapters translate.

Valid by construction: a result lives inside the message that asked for it, so no order of events can make a tool use
with two results or a result without its use. No wire format and no I/O here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from towline.events.adopted import MAX_UNPARSABLE_CHARACTERS
from towline.naming import MAX_TOOL_NAME_CHARACTERS

MAX_ARGUMENTS_CHARACTERS = 700_000
MAX_ARGUMENTS_DEPTH = 32
"""Arguments beyond these are taken as unparsable: the gateway refuses requests of 4 MiB, or nested 64 deep, whole."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning; `native` is the provider's block verbatim (signature, encrypted content), sent back untouched."""

    text: str
    native: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Native:
    """A block of a kind that only its provider understands, verbatim."""

    native: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool the model wants called. `arguments` is None when what it wrote is no JSON object: then `unparsable`."""

    call_id: str
    name: str
    arguments: Mapping[str, Any] | None
    unparsable: str = ""
    provider_id: str = ""
    """The provider's own id, for the record only: providers repeat them."""


Block = Text | Thinking | Native | ToolUse


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The one recorded result of a tool use."""

    call_id: str
    text: str
    is_error: bool = False
    outcome: str = "ok"


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A prompt."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A model's answer, with the results of its tool uses as far as they are known."""

    message_id: str
    blocks: tuple[Block, ...]
    stop_reason: str = "end_turn"
    results: Mapping[str, ToolResult] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        return tuple(block for block in self.blocks if isinstance(block, ToolUse))

    @property
    def open_calls(self) -> tuple[ToolUse, ...]:
        """Tool uses without a result, in the order they were asked for."""
        return tuple(use for use in self.tool_uses if use.call_id not in self.results)


Message = UserMessage | AssistantMessage


def call_id(message_id: str, index: int) -> str:
    """Ours, never the provider's: unique in the run even when a provider repeats its ids. At most 40 characters."""
    return f"tc_{message_id.rpartition('_')[2]}_{index}"


def tool_use(message_id: str, index: int, name: str, arguments_text: str, provider_id: str) -> ToolUse:
    """The tool use that a provider's raw argument text means; an empty text is an empty object.

    Cut here to what the gateway records, so that the harness puts back just that, should the store lose it.
    """
    arguments_text = well_formed(arguments_text)  # before it is judged: a character may have come in two halves
    arguments = _json_object(arguments_text or "{}")
    unparsable = arguments_text[:MAX_UNPARSABLE_CHARACTERS] if arguments is None else ""
    name = well_formed(name)[:MAX_TOOL_NAME_CHARACTERS]
    return ToolUse(call_id(message_id, index), name, arguments, unparsable, well_formed(provider_id))


def _json_object(text: str) -> dict[str, Any] | None:
    if len(text) > MAX_ARGUMENTS_CHARACTERS:
        return None
    try:
        value = json.loads(text, parse_constant=_refuse)
        # Escaped lone surrogates and 1e999 pass json.loads, but no strict reader after us.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _depth_within(value, MAX_ARGUMENTS_DEPTH) else None


def _depth_within(value: Any, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    children = value.values() if isinstance(value, dict) else value
    return limit > 0 and all(_depth_within(child, limit - 1) for child in children)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def well_formed(text: str) -> str:
    """`text` as valid Unicode: halves of one character, sent in two deltas, are joined, lone ones replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def characters(message: Message) -> int:
    """Length of what a model gets of a message: the measure of a history, roughly four to a token."""
    if isinstance(message, UserMessage):
        return len(message.text)
    results = sum(len(result.text) for result in message.results.values())
    return results + sum(len(json.dumps(block_data(block), ensure_ascii=False)) for block in message.blocks)


def message_data(message: Message) -> dict[str, Any]:
    """The message as it is kept in `context.compacted`."""
    if isinstance(message, UserMessage):
        return {"role": "user", "text": message.text}
    return {
        "role": "assistant",
        "message_id": message.message_id,
        "content": [block_data(block) for block in message.blocks],
        "stop_reason": message.stop_reason,
        "results": [
            {"call_id": each.call_id, "text": each.text, "is_error": each.is_error, "outcome": each.outcome}
            for each in message.results.values()
        ],
    }


def message_from(data: Mapping[str, Any]) -> Message:
    """The inverse of `message_data`."""
    if data["role"] == "user":
        return UserMessage(data["text"])
    blocks = tuple(block_from(block) for block in data["content"])
    results = [ToolResult(each["call_id"], each["text"], each["is_error"], each["outcome"]) for each in data["results"]]
    return AssistantMessage(
        data["message_id"], blocks, data["stop_reason"], {result.call_id: result for result in results}
    )


def block_data(block: Block) -> dict[str, Any]:
    """The block as it stands in an `agent.message` event."""
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text, native):
            return {"type": "thinking", "text": text, "native": dict(native)}
        case Native(native):
            return {"type": "native", "native": dict(native)}
        case ToolUse(id_, name, None, unparsable, provider_id):
            return {
                "type": "tool_use",
                "call_id": id_,
                "name": name,
                "input_text": unparsable,
                "provider_id": provider_id,
            }
        case ToolUse(id_, name, arguments, _, provider_id):
            return {"type": "tool_use", "call_id": id_, "name": name, "input": arguments, "provider_id": provider_id}


def block_from(data: Mapping[str, Any]) -> Block:
    """The inverse of `block_data`; a type that this version does not know becomes a native block."""
    match data.get("type"):
        case "text":
            return Text(data["text"])
        case "thinking":
            return Thinking(data["text"], data.get("native", {}))
        case "tool_use":
            provider_id = data.get("provider_id", "")
            return ToolUse(data["call_id"], data["name"], data.get("input"), data.get("input_text", ""), provider_id)
        case "native":
            return Native(data["native"])
        case _:
            return Native(data)
