"""Adapter for the Anthropic Messages API: neutral request → JSON body, server-sent events → neutral answer.

Wire format: docs.anthropic.com, "Messages" and "Streaming". Thinking blocks go back with their signature untouched,
which the API checks. Both translations are pure; `AnthropicMessages.stream` joins them to the wire.
"""

import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from towline.api import snapshot
from towline.harness.models.base import (
    Finished,
    ModelAuthentication,
    ModelFault,
    ModelRequestRejected,
    ModelUnavailable,
    Request,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    Tool,
    Usage,
)
from towline.harness.models.names import wire_name
from towline.harness.models.shapes import text, token_count, well_shaped
from towline.harness.models.sse import ServerSentEvent
from towline.harness.models.wire import Wire
from towline.harness.transcript import (
    AssistantMessage,
    Block,
    Message,
    Native,
    Text,
    Thinking,
    ToolUse,
    UserMessage,
    tool_use,
    well_formed,
)

BASE_URL = "https://api.anthropic.com"
PATH = "/v1/messages"
HEADERS = {"anthropic-version": "2023-06-01"}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
STOP_REASONS = {"model_context_window_exceeded": "max_tokens"}
FAULTS: dict[str, type[ModelFault]] = {
    "authentication_error": ModelAuthentication,
    "permission_error": ModelAuthentication,
    "invalid_request_error": ModelRequestRejected,
    "not_found_error": ModelRequestRejected,
    "request_too_large": ModelRequestRejected,
}
"""Kinds of an error sent inside a stream; any other one (overloaded, rate limit, api) may pass."""


class AnthropicMessages:
    """The Model port over the Messages API."""

    def __init__(self, model: snapshot.Model, wire: Wire) -> None:
        self._model = model
        self._wire = wire

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        answer = Answer(request.message_id)
        try:
            async with aclosing(self._wire.events(body(self._model, request), HEADERS)) as events:
                async for event in events:
                    for delta in answer.take(event):
                        yield delta
                    if answer.error is not None:
                        kind = FAULTS.get(str(answer.error.get("type")), ModelUnavailable)
                        raise self._wire.fault(kind, str(answer.error.get("message", "an error without a message")))
                    if answer.complete:
                        break
            yield answer.finished()
        except ModelFault as fault:
            fault.usage = answer.usage
            raise


def body(model: snapshot.Model, request: Request) -> dict[str, Any]:
    """The request's JSON. Three cache marks (tools, system, last message) of the four that the API allows."""
    wire: dict[str, Any] = {"model": model.name, "max_tokens": model.max_output_tokens, "stream": True}
    if request.system.strip():
        wire["system"] = [{"type": "text", "text": request.system, **EPHEMERAL}]
    if request.tools:
        wire["tools"] = _tools(request.tools)
        if request.purpose == "summary":
            wire["tool_choice"] = {"type": "none"}
    wire["messages"] = _messages(request.messages)
    if wire["messages"]:
        wire["messages"][-1]["content"][-1].update(EPHEMERAL)
    return wire


def _tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    wire = [{"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools]
    return [*wire[:-1], {**wire[-1], **EPHEMERAL}]


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Alternating roles: what follows in the same role is joined, results before words, as the API demands."""
    wire: list[dict[str, Any]] = []

    def add(role: str, content: list[dict[str, Any]]) -> None:
        if content and wire and wire[-1]["role"] == role:
            wire[-1]["content"] += content
        elif content:
            wire.append({"role": role, "content": content})

    for message in messages:
        match message:
            case UserMessage(text):
                add("user", [{"type": "text", "text": text}])
            case AssistantMessage():
                add("assistant", [wire_block for block in message.blocks for wire_block in _block(block)])
                add("user", [_result(message, use) for use in message.tool_uses])
    return wire


def _block(block: Block) -> list[dict[str, Any]]:
    match block:
        case Text(text):
            return [{"type": "text", "text": text}] if text.strip() else []
        case Thinking(_, native):
            kept = native.get("type") == "redacted_thinking" or native.get("signature")
            return [dict(native)] if kept else []
        case Native(native):
            return [dict(native)]
        case ToolUse():
            arguments = block.arguments if block.arguments is not None else {"unparsable_arguments": block.unparsable}
            return [{"type": "tool_use", "id": block.call_id, "name": wire_name(block.name), "input": arguments}]


def _result(message: AssistantMessage, use: ToolUse) -> dict[str, Any]:
    result = message.results[use.call_id]
    wire: dict[str, Any] = {"type": "tool_result", "tool_use_id": use.call_id, "is_error": result.is_error}
    # The API refuses a text of white space, and an error without a text: for good, as the history keeps both.
    if text := result.text if result.text.strip() else "(no output)" * result.is_error:
        wire["content"] = [{"type": "text", "text": text}]
    return wire


class Answer:
    """Assembles one answer from its events. Pure: feed `take`, then ask `finished`."""

    def __init__(self, message_id: str) -> None:
        self.complete = False
        self.error: Mapping[str, Any] | None = None
        self._message_id = message_id
        self._stop_reason = "end_turn"
        self._tokens: dict[str, int] = {}
        self._blocks: dict[int, _OpenBlock] = {}

    def take(self, event: ServerSentEvent) -> list[StreamEvent]:
        """Deltas to show. Raises ModelProtocolError for an event of another shape; unknown kinds are passed over."""
        with well_shaped(f"event {event.event[:40]!r}"):
            return self._take(json.loads(event.data))

    def _take(self, data: dict[str, Any]) -> list[StreamEvent]:
        match data["type"]:
            case "message_start":
                self._count(data["message"])
                return [self.usage]
            case "content_block_start":
                self._blocks[data["index"]] = _OpenBlock(data["content_block"])
            case "content_block_delta":
                return self._blocks[data["index"]].add(data["delta"])
            case "message_delta":
                self._stop_reason = text(data["delta"].get("stop_reason")) or self._stop_reason
                self._count(data)
            case "message_stop":
                self.complete = True
            case "error":
                self.error = dict(data["error"])
        return []

    def _count(self, data: Mapping[str, Any]) -> None:
        usage = data.get("usage") or {}
        self._tokens |= {name: token_count(usage[name]) for name in COUNTS if usage.get(name) is not None}

    @property
    def usage(self) -> Usage:
        """Reported so far. The API counts cached input apart; ours is the sum."""
        asked, created, cached, answered = (self._tokens.get(name, 0) for name in COUNTS)
        return Usage(asked + created + cached, answered, cached)

    def finished(self) -> Finished:
        """Raises ModelUnavailable when the stream ended before the answer did, ModelProtocolError for one of another
        shape."""
        if not self.complete:
            raise ModelUnavailable("the stream ended before the answer did")
        with well_shaped("answer"):
            return self._finished()

    def _finished(self) -> Finished:
        blocks: list[Block] = []
        uses = 0
        for _, open_block in sorted(self._blocks.items()):
            blocks += open_block.close(self._message_id, uses)
            uses += open_block.kind == "tool_use"
        return Finished(tuple(blocks), STOP_REASONS.get(self._stop_reason, self._stop_reason), self.usage)


class _OpenBlock:
    """A content block between its start and the end of the message."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.kind = str(start["type"])
        self._native = dict(start)
        self._text = [text(start.get(self.kind))] if self.kind in ("text", "thinking") else []
        self._json: list[str] = []

    def add(self, delta: Mapping[str, Any]) -> list[StreamEvent]:
        match delta["type"]:
            case "text_delta":
                self._text.append(text(delta["text"]))
                return [TextDelta(self._text[-1])]
            case "thinking_delta":
                self._text.append(text(delta["thinking"]))
                return [ThinkingDelta(self._text[-1])]
            case "input_json_delta":
                self._json.append(text(delta["partial_json"]))
            case "signature_delta":
                self._native["signature"] = text(delta["signature"])
        return []

    def close(self, message_id: str, index: int) -> list[Block]:
        said = well_formed("".join(self._text))
        match self.kind:
            case "text":
                return [Text(said)] if said else []
            case "thinking":
                return [Thinking(said, {**self._native, "thinking": said})]
            case "redacted_thinking":
                return [Thinking("", self._native)]
            case "tool_use":
                raw = "".join(self._json) or json.dumps(self._native.get("input") or {})
                name, provider_id = text(self._native["name"]), text(self._native.get("id"))
                return [tool_use(message_id, index, name, raw, provider_id)]
            case _:
                return [Native(self._with_input())]

    def _with_input(self) -> dict[str, Any]:
        """Server-side tools stream their input too; the provider wants it back where it belongs."""
        try:
            return {**self._native, "input": json.loads("".join(self._json))} if self._json else self._native
        except ValueError:
            return self._native
