"""The closed list of event types and the shape of each one's `data`, as written to the log.

Called by writers for the shapes and by the test of `docs/events.md` for the list. Nothing is validated at run time:
writers are trusted processes, and readers ignore types and keys they do not know.
"""

from typing import Any, Literal, NotRequired, TypedDict

Outcome = Literal["ok", "error", "denied", "cancelled", "unknown"]


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    text: str
    native: dict[str, Any]
    """The provider's block verbatim (signatures, encrypted reasoning): it must go back unchanged."""


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    call_id: str
    name: str
    input: NotRequired[dict[str, Any]]
    input_text: NotRequired[str]
    """Instead of `input`, when the model's arguments could not be parsed."""
    provider_id: str


class NativeBlock(TypedDict):
    type: Literal["native"]
    native: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock | NativeBlock


class Usage(TypedDict):
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int


class Decision(TypedDict):
    action: str
    rule: str


class Result(TypedDict):
    text: str
    truncated: bool
    sha256: str


class RunStarted(TypedDict):
    name: str
    namespace: str
    digest: str


class RunStatus(TypedDict):
    phase: str
    reason: str


class HarnessStarted(TypedDict):
    kind: str
    version: str
    epoch: int


class HarnessSealed(TypedDict):
    filters: int
    instructions: int
    landlock_abi: int


class HarnessResumed(TypedDict):
    from_seq: int
    open_calls: list[str]


class HarnessLost(TypedDict):
    epoch: int
    reason: str
    exit_code: int | None
    signal: int | None


class TurnStarted(TypedDict):
    prompt_ids: list[str]


class UserMessage(TypedDict):
    prompt_id: str
    content: str
    delivery: str
    sender: str
    key: NotRequired[str]
    """Idempotency key, empty for the run's own prompt; not in logs older than 0.1."""


class TurnCompleted(TypedDict):
    stop_reason: str


class TurnRetrying(TypedDict):
    reason: str
    attempt: int
    delay_seconds: float


class TurnWaiting(TypedDict):
    on: str


class ModelRequestStart(TypedDict):
    message_id: str
    model: str
    left_out: int
    """Characters of tool results that the request does without, since the conversation would have been too large."""


class ModelRequestEnd(TypedDict):
    message_id: str
    model: str
    usage: Usage
    cost_micro_usd: int
    duration_ms: int
    ttft_ms: int | None
    error: str | None


class MessageStart(TypedDict):
    message_id: str


class Message(TypedDict):
    message_id: str
    content: list[Block]
    stop_reason: str


class MessageAborted(TypedDict):
    message_id: str
    partial: str
    reason: str


class Thinking(TypedDict):
    """Reserved: thinking is kept as blocks of `agent.message`, so that one event holds what the provider gets back."""


class ToolUse(TypedDict):
    call_id: str
    name: str
    input: dict[str, Any]
    decision: Decision


class ToolResult(TypedDict):
    call_id: str
    name: str
    outcome: Outcome
    is_error: bool
    content: list[TextBlock]
    duration_ms: int
    truncated: bool
    total_bytes: int
    exit_code: int | None


class PolicyDenied(TypedDict):
    call_id: str
    name: str
    rule: str
    message: str


class SandboxRequested(TypedDict):
    call_id: str


class SandboxReady(TypedDict):
    name: str
    provider: str
    start: Literal["cold", "warm"]
    ms: int


class SandboxLost(TypedDict):
    name: str
    reason: str
    message: str


class SandboxDeleted(TypedDict):
    name: str


class SandboxSuspended(TypedDict):
    name: str


class ContextCompacted(TypedDict):
    """Everything a history needs of what went before: a fold may begin with this event."""

    reason: str
    """`budget`, `messages` or `continued`."""
    summary: str
    kept: list[dict[str, Any]]
    """The messages after the cut, in the form of `harness/transcript.py`."""
    turn: int
    turn_open: bool
    turn_at: int
    """Index in `kept` of the message that the turn started with."""
    turn_prompts: NotRequired[list[str]]
    """Ids of the prompts that the turn has taken; not in logs older than 0.1."""
    consumed: list[int]
    """The prompts taken: all up to the first number, and the others singly."""
    answers: int
    totals: dict[str, int]
    before_tokens: int
    """Estimated size of the history that was left behind, in tokens."""
    source: NotRequired[dict[str, Any]]
    """The run (`uid`) and `seq` that this one continues from."""


class RunCompleted(TypedDict):
    result: Result
    usage: Usage
    cost_micro_usd: int
    turns: int
    tool_calls: int


class RunFailed(TypedDict):
    reason: str
    message: str


class RunCancelled(TypedDict):
    reason: str


class StoreLost(TypedDict):
    head: int
    """The last seq that survived."""
    acknowledged: int
    """The highest seq the writer that noticed had seen confirmed."""
    incarnation: int
    """The new incarnation of the log."""


EVENT_TYPES: dict[str, type] = {
    "run.started": RunStarted,
    "run.status": RunStatus,
    "harness.started": HarnessStarted,
    "harness.sealed": HarnessSealed,
    "harness.resumed": HarnessResumed,
    "harness.lost": HarnessLost,
    "turn.started": TurnStarted,
    "user.message": UserMessage,
    "turn.completed": TurnCompleted,
    "turn.retrying": TurnRetrying,
    "turn.waiting": TurnWaiting,
    "span.model_request_start": ModelRequestStart,
    "span.model_request_end": ModelRequestEnd,
    "agent.message_start": MessageStart,
    "agent.message": Message,
    "agent.message_aborted": MessageAborted,
    "agent.thinking": Thinking,
    "agent.tool_use": ToolUse,
    "agent.tool_result": ToolResult,
    "policy.denied": PolicyDenied,
    "sandbox.requested": SandboxRequested,
    "sandbox.ready": SandboxReady,
    "sandbox.lost": SandboxLost,
    "sandbox.deleted": SandboxDeleted,
    "sandbox.suspended": SandboxSuspended,
    "context.compacted": ContextCompacted,
    "run.completed": RunCompleted,
    "run.failed": RunFailed,
    "run.cancelled": RunCancelled,
    "store.lost": StoreLost,
}
