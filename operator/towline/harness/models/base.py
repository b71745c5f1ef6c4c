"""What every model adapter takes and gives: a neutral request, stream events, and the family of faults.

The loop knows this file and no adapter. An adapter makes one attempt; retries, deltas and the record are the loop's.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from towline.harness.transcript import Block, Message


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model is offered; `input_schema` is JSON Schema, passed on as the gateway gave it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One model request. `messages` holds no tool use without a result."""

    message_id: str
    """Id of the answer, made before it exists: call ids derive from it."""
    system: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answers: int = 0
    """How many answers the run has had: the place in a script."""
    purpose: Literal["answer", "summary"] = "answer"
    """A summary is an answer in words: no tool may be used in it, though they are offered."""
    left_out: int = 0
    """Characters of the conversation that are not in `messages`, since it would have been too large."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `input_tokens` counts all input; `cached_input_tokens` is the part read from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole answer: always the last event of a stream that did not fault.

    `stop_reason` is `end_turn`, `tool_use`, `max_tokens` or `refusal`; another one is the provider's word, verbatim.
    """

    blocks: tuple[Block, ...]
    stop_reason: str
    usage: Usage


StreamEvent = TextDelta | ThinkingDelta | Usage | Finished
"""Usage: the answer has begun, and this is what the provider has reported so far, should it be broken off."""


class Model(Protocol):
    """One attempt at an answer. Raises a ModelFault; anything else is a bug. Closing the generator ends the request."""

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]: ...


class ModelFault(Exception):
    """A request failed. `reason` becomes the run's failure reason when the fault is final; `str()` is safe to record.

    `usage` is what the provider had already reported: a broken answer costs too.
    """

    reason = "ModelUnavailable"
    attempts = 8
    """How often the request is made before the fault is final: here over two minutes, an overload but no outage."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.usage = Usage()


class ModelUnavailable(ModelFault):
    """429, 5xx, a timeout, a connection or a stream that broke: the same request may succeed later."""


class ModelProtocolError(ModelFault):
    """The answer is not what the wire format says. Often a proxy in between, hence worth another try."""

    reason = "ModelProtocolError"
    attempts = 4


class ModelAuthentication(ModelFault):
    """401 or 403, or no usable key: a person must act."""

    reason = "ModelAuthentication"
    attempts = 1


class ModelRequestRejected(ModelFault):
    """400, 404 and their like: the same request would be refused again."""

    reason = "ModelRequestRejected"
    attempts = 1
