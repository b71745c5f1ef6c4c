"""The status of an AgentRun: what the operator observed, small and bounded. Nobody else writes it.

The truth is the run's event log; this is the part of it that `kubectl` shows and waits on.
"""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from towline.api.common import Count, Part
from towline.api.conditions import Conditions, Phase


class Resolved(Part):
    """What the references resolved to, fixed when the run was accepted."""

    digest: Annotated[str, Field(max_length=80)]
    """Digest of the snapshot that harness and gateway work with."""


class HarnessStatus(Part):
    """The process that holds the run."""

    pod_name: Annotated[str, Field(max_length=253)] = ""
    """Its pod."""
    pod_uid: Annotated[str, Field(max_length=64)] = ""
    """The pod's UID."""
    restarts: Count = 0
    """How many harnesses came before it."""


class SandboxStatus(Part):
    """The run's sandbox."""

    name: Annotated[str, Field(max_length=253)] = ""
    """Its name."""
    state: Literal["Absent", "Starting", "Ready", "Suspended", "Lost", "Failed", "Deleted"] = "Absent"
    """Where it stands."""
    requested_at: AwareDatetime | None = None
    """When a tool call first needed it."""
    ready_at: AwareDatetime | None = None
    """When the gateway had reached it."""
    from_pool: bool = False
    """Whether it was taken from the warm pool."""


class StreamStatus(Part):
    """Where the run's events are."""

    key: Annotated[str, Field(max_length=512)]
    """The Redis stream."""
    incarnation: Count = 1
    """Rises when the store lost a tail of the history."""
    last_seq: Count = 0
    """The last event that the operator has seen."""


class Usage(Part):
    """What the models consumed, over all attempts."""

    input_tokens: Count = 0
    """Tokens sent."""
    output_tokens: Count = 0
    """Tokens received."""
    cached_input_tokens: Count = 0
    """Part of the tokens sent that the provider had cached."""
    total_tokens: Count = 0
    """Sent and received together."""
    cost_micro_usd: Count | None = None
    """Cost in millionths of a US dollar; absent when the model has no price."""


class Result(Part):
    """The final answer."""

    text: Annotated[str, Field(max_length=4096)]
    """Its beginning; the event log has it whole."""
    truncated: bool = False
    """Whether text is only the beginning."""
    sha256: Annotated[str, Field(max_length=64)] = ""
    """Digest of the whole answer."""


class Failure(Part):
    """Why the run did not succeed."""

    reason: Annotated[str, Field(max_length=128)]
    """One word out of the documented list."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """For a person."""


class Attempt(Part):
    """One harness that held the run and is gone."""

    epoch: Count
    """Its epoch."""
    pod_name: Annotated[str, Field(max_length=253)] = ""
    """Its pod."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Why it ended."""
    crashed: bool = False
    """Whether it counts towards backoffLimit."""
    progress: Count | None = None
    """Seq of the last event, when it ended, that had brought the run further."""
    start_time: AwareDatetime | None = None
    """When it started; absent when its pod was gone before it was replaced."""
    end_time: AwareDatetime | None = None
    """When it ended."""


class AgentRunStatus(Part):
    """What the operator observed. Nobody else writes it."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    phase: Phase | None = None
    """The conditions in one word."""
    conditions: Conditions = ()
    """The observations that everything else follows from."""
    start_time: AwareDatetime | None = None
    """When the first harness started."""
    completion_time: AwareDatetime | None = None
    """When the run ended."""
    last_activity_time: AwareDatetime | None = None
    """When its last event happened."""
    paused_since: AwareDatetime | None = None
    """Since when activeDeadlineSeconds stands still: the run is suspended, or waits for a person."""
    paused_seconds: Count | None = None
    """For how long it stood still before."""
    attempt: Count | None = None
    """How many harnesses have crashed."""
    epoch: Count | None = None
    """The fence: one for each harness pod, never falls."""
    resolved: Resolved | None = None
    """What the references resolved to."""
    harness: HarnessStatus | None = None
    """The process that holds the run."""
    sandbox: SandboxStatus | None = None
    """The run's sandbox."""
    stream: StreamStatus | None = None
    """Where the run's events are."""
    turns: Count | None = None
    """Completed turns."""
    tool_calls: Count | None = None
    """Tool calls that the gateway accepted."""
    usage: Usage | None = None
    """What the models consumed."""
    pending_approvals: Count | None = None
    """Tool calls that wait for a person."""
    result: Result | None = None
    """The final answer."""
    failure: Failure | None = None
    """Why the run did not succeed."""
    attempts: Annotated[tuple[Attempt, ...], Field(max_length=5)] = ()
    """The last harnesses that are gone."""
