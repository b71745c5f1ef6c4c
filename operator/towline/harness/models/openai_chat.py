"""Adapter for the OpenAI Chat Completions API and the many servers that speak it (vLLM, Ollama, llama.cpp, routers).

Wire format: platform.openai.com, "Chat Completions" and its streaming. Lenient in what it reads: servers leave out
usage, `[DONE]`, indexes or ids of tool calls. Both translations are pure.
"""

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from towline.api import snapshot
from towline.harness.models.base import (
    Finished,
    ModelFault,
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
from towline.harness.models.wire import Wire, error_message
from towline.harness.transcript import (
    AssistantMessage,
    Block,
    Message,
    Text,
    Thinking,
    ToolUse,
    UserMessage,
    tool_use,
    well_formed,
)

BASE_URL = "https://api.openai.com/v1"
PATH = "/chat/completions"
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class OpenAIChatCompletions:
    """The Model port over Chat Completions."""

    def __init__(self, model: snapshot.Model, wire: Wire) -> None:
        self._model = model
        self._wire = wire

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        answer = Answer(request.message_id)
        try:
            async with aclosing(self._wire.events(body(self._model, request), {})) as events:
                async for event in events:
                    for delta in answer.take(event):
                        yield delta
                    if answer.error:
                        raise self._wire.fault(ModelUnavailable, answer.error)
                    if answer.complete:
                        break
            yield answer.finished()
        except ModelFault as fault:
            fault.usage = answer.usage
            raise


def body(model: snapshot.Model, request: Request) -> dict[str, Any]:
    """The request's JSON."""
    # OpenAI's newer models refuse `max_tokens`; most other servers know nothing else.
    official = (urlsplit(model.base_url or BASE_URL).hostname or "").endswith(("openai.com", "openai.azure.com"))
    wire: dict[str, Any] = {
        "model": model.name,
        "max_completion_tokens" if official else "max_tokens": model.max_output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        wire["tools"] = [_tool(tool) for tool in request.tools]
        if request.purpose == "summary":
            wire["tool_choice"] = "none"
    system = [{"role": "system", "content": request.system}] if request.system else []
    wire["messages"] = [*system, *_messages(request.messages)]
    return wire


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case UserMessage(text) if wire and wire[-1]["role"] == "user":
                wire[-1]["content"] += "\n\n" + text  # many chat templates refuse two user messages in a row
            case UserMessage(text):
                wire.append({"role": "user", "content": text})
            case AssistantMessage() if message.text or message.tool_uses:
                wire.append(_assistant(message))
                for use in message.tool_uses:
                    result = message.results[use.call_id]
                    wire.append({"role": "tool", "tool_call_id": use.call_id, "content": result.text})
    return wire


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.tool_uses:
        wire["tool_calls"] = [_call(use) for use in message.tool_uses]
    return wire


def _call(use: ToolUse) -> dict[str, Any]:
    # Chat templates parse the arguments, so what the model wrote wrong must not go back as it was.
    arguments = use.arguments if use.arguments is not None else {"unparsable_arguments": use.unparsable}
    function = {"name": wire_name(use.name), "arguments": json.dumps(arguments)}
    return {"id": use.call_id, "type": "function", "function": function}


class Answer:
    """Assembles one answer from its chunks. Pure: feed `take`, then ask `finished`."""

    def __init__(self, message_id: str) -> None:
        self.complete = False
        self.error = ""
        self.usage = Usage()
        self._message_id = message_id
        self._finish_reason = ""
        self._refused = False
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_OpenCall] = []

    def take(self, event: ServerSentEvent) -> list[StreamEvent]:
        """Deltas to show. Raises ModelProtocolError for a chunk of another shape."""
        if event.data.strip() == "[DONE]":
            self.complete = True
            return []
        with well_shaped("chunk"):
            return self._take(json.loads(event.data))

    def _take(self, chunk: dict[str, Any]) -> list[StreamEvent]:
        if chunk.get("error"):
            self.error = error_message(json.dumps(chunk))
            return []
        if usage := chunk.get("usage"):
            self.usage = _usage(usage)
        deltas: list[StreamEvent] = []
        for choice in chunk.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            if thinking := text(delta.get("reasoning_content") or delta.get("reasoning")):
                self._thinking.append(thinking)
                deltas.append(ThinkingDelta(thinking))
            if said := text(delta.get("content")):
                self._text.append(said)
                deltas.append(TextDelta(said))
            if refusal := text(delta.get("refusal")):
                self._refused = True
                self._text.append(refusal)
                deltas.append(TextDelta(refusal))
            for call in delta.get("tool_calls") or []:
                self._add_call(call)
                deltas.append(self.usage)  # nothing to show, but the answer has begun and costs
            self._finish_reason = text(choice.get("finish_reason")) or self._finish_reason
        return deltas

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        """Join by index; a new id under an old index is a new call (servers that number every call 0)."""
        id_, function = text(delta.get("id")), delta.get("function") or {}
        index = delta.get("index")
        known = next((call for call in reversed(self._calls) if index is None or call.index == index), None)
        if known is None or (id_ and known.id and id_ != known.id) or (index is None and function.get("name")):
            known = _OpenCall(index if index is not None else len(self._calls))
            self._calls.append(known)
        known.id = known.id or id_
        known.name = known.name or text(function.get("name"))
        arguments = function.get("arguments") or ""
        known.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def finished(self) -> Finished:
        """Raises ModelUnavailable when the stream ended before the answer did, ModelProtocolError for one of another
        shape."""
        if not (self.complete or self._finish_reason):
            raise ModelUnavailable("the stream ended before the answer did")
        with well_shaped("answer"):
            return self._finished()

    def _finished(self) -> Finished:
        blocks: list[Block] = []
        if thinking := well_formed("".join(self._thinking)):
            blocks.append(Thinking(thinking, {"reasoning_content": thinking}))
        if said := well_formed("".join(self._text)):
            blocks.append(Text(said))
        for position, call in enumerate(self._calls):
            blocks.append(tool_use(self._message_id, position, call.name, "".join(call.arguments), call.id))
        reason = "refusal" if self._refused else self._finish_reason or "stop"
        return Finished(tuple(blocks), STOP_REASONS.get(reason, reason), self.usage)


@dataclass(slots=True)
class _OpenCall:
    """A tool call whose arguments are still arriving."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


def _usage(wire: Mapping[str, Any]) -> Usage:
    cached = token_count((wire.get("prompt_tokens_details") or {}).get("cached_tokens"))
    asked, answered = token_count(wire.get("prompt_tokens")), token_count(wire.get("completion_tokens"))
    return Usage(asked, answered, min(cached, asked))
