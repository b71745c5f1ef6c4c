"""A scripted step in the two providers' words: the answer as one JSON body, and as the events of its stream.

Used by the scripted server. Pure; ids are made from the step's place, so the same script gives the same bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from towline.api.snapshot import ScriptedStep
from towline.harness.models.scripted import words

BROKEN_ARGUMENTS = '{"command": "echo'


@dataclass(frozen=True, slots=True)
class Answer:
    """A step as the model would give it, with what a fault makes of its tool calls."""

    step: ScriptedStep
    index: int
    input_tokens: int
    model: str
    duplicate_call_ids: bool = False
    unknown_tool: bool = False
    bad_arguments: bool = False

    @property
    def output_tokens(self) -> int:
        return len(f"{self.step.thinking} {self.step.text}".split())

    def calls(self, prefix: str) -> list[tuple[str, str, str]]:
        """(id, name, arguments as text) of each tool call."""
        return [
            (
                f"{prefix}_dup" if self.duplicate_call_ids else f"{prefix}_{self.index}_{position}",
                "no_such_tool" if self.unknown_tool else call.name,
                BROKEN_ARGUMENTS if self.bad_arguments else json.dumps(call.arguments),
            )
            for position, call in enumerate(self.step.tool_calls)
        ]


def signature(thinking: str) -> str:
    """What stands for the provider's signature of a thinking block: the server checks it when the block comes back."""
    return "sig_" + hashlib.sha256(thinking.encode()).hexdigest()[:16]


def pieces(text: str, size: int = 7) -> Iterator[str]:
    """Argument text in parts that end anywhere, as providers send it."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def anthropic_message(answer: Answer) -> dict[str, Any]:
    """The body of an answer that is not streamed; arguments must be JSON."""
    step = answer.step
    content: list[dict[str, Any]] = []
    if step.thinking:
        content.append({"type": "thinking", "thinking": step.thinking, "signature": signature(step.thinking)})
    if step.text:
        content.append({"type": "text", "text": step.text})
    for id_, name, arguments in answer.calls("toolu"):
        content.append({"type": "tool_use", "id": id_, "name": name, "input": json.loads(arguments)})
    return {
        **_anthropic_head(answer),
        "content": content,
        "stop_reason": "tool_use" if step.tool_calls else "end_turn",
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
    }


def _anthropic_head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.index}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": 1},
    }


def anthropic_events(answer: Answer) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, each with its `type`."""
    step, position = answer.step, 0
    yield {"type": "message_start", "message": _anthropic_head(answer)}
    yield {"type": "ping"}
    if step.thinking:
        unsigned = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": word} for word in words(step.thinking)]
        deltas.append({"type": "signature_delta", "signature": signature(step.thinking)})
        yield from _anthropic_block(position, unsigned, deltas)
        position += 1
    if step.text:
        deltas = [{"type": "text_delta", "text": word} for word in words(step.text)]
        yield from _anthropic_block(position, {"type": "text", "text": ""}, deltas)
        position += 1
    for id_, name, arguments in answer.calls("toolu"):
        start: dict[str, Any] = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(arguments)]]
        yield from _anthropic_block(position, start, deltas)
        position += 1
    stop = {"stop_reason": "tool_use" if step.tool_calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": answer.output_tokens}}
    yield {"type": "message_stop"}


def _anthropic_block(position: int, start: Mapping[str, Any], deltas: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": position, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": position, "delta": delta}
    yield {"type": "content_block_stop", "index": position}


def openai_message(answer: Answer) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.step.text or None}
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in answer.calls("call")
    ]
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return {**_openai_head(answer, "chat.completion"), "choices": [choice], "usage": _openai_usage(answer)}


def openai_chunks(answer: Answer, *, usage: bool) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed answer, without the final `[DONE]`; `usage` as the request asked for it."""
    step = answer.step

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**_openai_head(answer, "chat.completion.chunk"), "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for word in words(step.thinking):
        yield chunk({"reasoning_content": word})
    for word in words(step.text):
        yield chunk({"content": word})
    for position, (id_, name, arguments) in enumerate(answer.calls("call")):
        function = {"name": name, "arguments": ""}
        yield chunk({"tool_calls": [{"index": position, "id": id_, "type": "function", "function": function}]})
        for piece in pieces(arguments):
            yield chunk({"tool_calls": [{"index": position, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if step.tool_calls else "stop")
    if usage:
        yield {**_openai_head(answer, "chat.completion.chunk"), "choices": [], "usage": _openai_usage(answer)}


def _openai_head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl_{answer.index}", "object": kind, "created": 1, "model": answer.model}


def _openai_usage(answer: Answer) -> dict[str, int]:
    total = answer.input_tokens + answer.output_tokens
    counts = {"prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens}
    return {**counts, "total_tokens": total}
