"""The condition types of an AgentRun, their closed list of reasons, and the phase that follows from them.

The operator writes conditions from what it observes; `phase` is a pure function of them, so no handler can set a
phase that nothing supports. Readers wait on conditions (`kubectl wait --for=condition=Finished`), not on the phase.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, get_args

from pydantic import AwareDatetime, Field

from towline.api.common import Part, list_map

Phase = Literal[
    "Pending", "Queued", "Running", "InputRequired", "Suspended", "Cancelling", "Succeeded", "Failed", "Cancelled"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
TERMINAL_PHASES: tuple[Phase, ...] = ("Succeeded", "Failed", "Cancelled")


class ConditionType(StrEnum):
    """What is said about a run. `SandboxReady` False with NotRequested is normal: many runs never need one."""

    ACCEPTED = "Accepted"
    QUEUED = "Queued"
    HARNESS_READY = "HarnessReady"
    SANDBOX_READY = "SandboxReady"
    INPUT_REQUIRED = "InputRequired"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    """Unknown until the run ends, then True or False, once and for all."""
    FINISHED = "Finished"
    """True on every terminal outcome, never reverts: a wait for it cannot hang."""


OUTCOMES: dict[str, str] = {
    "Completed": "The model gave its final answer.",
    "Cancelled": "Somebody set spec.cancel, or deleted the run.",
    "DeadlineExceeded": "activeDeadlineSeconds passed.",
    "TurnLimitReached": "limits.maxTurns was reached when a prompt waited.",
    "ToolCallLimitReached": "An answer asked for more tool calls than limits.maxToolCalls leaves.",
    "InputTokenLimitReached": "limits.maxInputTokens is used up.",
    "OutputTokenLimitReached": "limits.maxOutputTokens is used up.",
    "CostLimitReached": "limits.maxCostMicroUSD is used up.",
    "BackoffLimitExceeded": "The harness crashed more often than backoffLimit allows.",
    "CrashLoop": "The harness crashed again and again at the same point.",
    "SealFailed": "The harness could not take exec and fork away from itself, so it did not start.",
    "GatewayRefused": "The gateway does not accept the run's harness.",
    "GatewayCrashLoop": "The local gateway ended again and again.",
    "ModelUnavailable": "The model provider did not answer, beyond the retries.",
    "ModelProtocolError": "The model provider answered with something that is not its API.",
    "ModelAuthentication": "The model provider refused the API key.",
    "ModelRequestRejected": "The model provider refused the request.",
    "ModelRefused": "The model declined to answer.",
    "OutputTruncated": "The answer reached the model's maxOutputTokens and is incomplete.",
    "EmptyAnswer": "The model answered with neither text nor a tool use.",
    "SandboxUnavailable": "No sandbox can be had for the run.",
    "ApprovalDenied": "A person denied a call, and the run may not go on without it.",
    "ApprovalTimeout": "Nobody decided in time, and approval.onTimeout is Fail.",
    "StoreLost": "The event store lost the run's history.",
    "InternalError": "A fault of towline's own; the message and the operator's log say which.",
}
"""Why a run ended: the reasons of Succeeded and Finished, and of the event run.failed. The event run.cancelled has the
canceller's own words instead; its condition's reason is Cancelled."""

REASONS: dict[ConditionType, dict[str, str]] = {
    ConditionType.ACCEPTED: {
        "Accepted": "All references resolve, and every policy is met.",
        "TemplateNotFound": "Neither the run's namespace nor the platform has the template.",
        "ProviderNotFound": "The template's model provider does not exist.",
        "SandboxClassNotFound": "The sandbox class does not exist.",
        "SecretNotFound": "The Secret with the provider's API key does not exist in the harness namespace.",
        "InvalidSpec": "The run and what it refers to do not fit together; the message lists every fault.",
        "NotAllowed": "The provider is not offered to this namespace.",
        "SourceNotFound": "The run that continueFrom names does not exist in the namespace, or has no history.",
    },
    ConditionType.QUEUED: {
        "ConcurrencyLimit": "As many runs as allowed are running.",
        "NotQueued": "Nothing holds the run back.",
    },
    ConditionType.HARNESS_READY: {
        "Starting": "The pod exists and is not yet running.",
        "Running": "The harness holds the run.",
        "Unschedulable": "No trusted node has room for the pod.",
        "ImagePullFailed": "The pod's image cannot be pulled.",
        "QuotaExceeded": "A ResourceQuota of the harness namespace has no room for the pod.",
        "PodRefused": "The API server refuses the pod; the message says why.",
        "NameTaken": "Somebody else's pod has the name that this one needs.",
        "ContainerFailed": "The kubelet cannot start the pod's container; the message says why.",
        "ProviderNotFound": "The model provider was deleted since the run was accepted.",
        "StoreUnavailable": "The event store does not answer, or does not know the run; no harness starts without it.",
        "Restarting": "The harness was lost; the next one starts after a delay.",
        "Waking": "The run slept or was suspended; its next harness is on its way.",
        "Asleep": "The run waits for a prompt without a harness; the next prompt starts one.",
        "Released": "No harness is needed now: the run waits, is suspended or has ended.",
    },
    ConditionType.SANDBOX_READY: {
        "NotRequested": "No tool call has needed a sandbox so far.",
        "Starting": "A sandbox is being made or taken from the pool.",
        "Ready": "The gateway has reached the tool server.",
        "Suspended": "The sandbox is put away, its workspace is kept.",
        "Lost": "The sandbox died; the next call gets a new one.",
        "Unschedulable": "No sandbox node has room for the pod.",
        "VolumeNotBound": "The claim for the workspace gets no volume; the message says why.",
        "ImagePullFailed": "The pod's image cannot be pulled.",
        "QuotaExceeded": "A ResourceQuota of the sandbox namespace has no room for the pod.",
        "PodRefused": "The API server refuses the pod; the message says why.",
        "NameTaken": "Somebody else's pod has the name that this one needs.",
        "ContainerFailed": "The kubelet cannot start the pod's container; the message says why.",
        "StartFailed": "The sandbox could not be started.",
        "PolicyNotEnforced": "The network policy is not in force, so no tool call runs.",
        "Released": "The sandbox is deleted, as the run needs it no more.",
    },
    ConditionType.INPUT_REQUIRED: {
        "ApprovalRequired": "A tool call waits for a person's decision.",
        "PromptAwaited": "The run is interactive and waits for the next prompt.",
        "NotRequired": "Nobody needs to act.",
    },
    ConditionType.SUSPENDED: {
        "UserRequested": "spec.suspend is true.",
        "NotSuspended": "The run may run.",
    },
    ConditionType.FINISHED: {"Running": "The run has not ended."} | OUTCOMES,
}
REASONS[ConditionType.SUCCEEDED] = {
    **{reason: meaning for reasons in REASONS.values() for reason, meaning in reasons.items()},
    "Running": "The run has not ended, and nothing holds it up.",
    "Cancelling": "The run is being cancelled: nothing new starts.",
}
"""Every reason there is, with its meaning. A reason outside this list is a fault of the writer. Until a run ends,
Succeeded has the reason of the condition that holds it up."""

_STARTED_BEFORE = ("Restarting", "Waking", "Released", "Asleep")
"""HarnessReady is False for these, and yet the run has made progress: it is not Pending again."""


class Condition(Part):
    """One observation, in the form that kubectl and other tools know."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What is observed."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
    """Why, in one word out of a documented list."""
    message: Annotated[str, Field(max_length=2048)] = ""
    """Why, for a person."""
    last_transition_time: AwareDatetime
    """When the status last changed."""
    observed_generation: int | None = None
    """The generation of the spec that this was observed for."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))]


def phase(conditions: Iterable[Condition]) -> Phase:
    """The one word for a run that `kubectl get` shows; a missing condition counts as Unknown."""
    by_type = {each.type: each for each in conditions}

    def status(kind: ConditionType) -> str:
        return by_type[kind].status if kind in by_type else "Unknown"

    def reason(kind: ConditionType) -> str:
        return by_type[kind].reason if kind in by_type else ""

    if status(ConditionType.FINISHED) == "True":
        if status(ConditionType.SUCCEEDED) == "True":
            return "Succeeded"
        return "Cancelled" if reason(ConditionType.SUCCEEDED) == "Cancelled" else "Failed"
    if reason(ConditionType.SUCCEEDED) == "Cancelling":
        return "Cancelling"
    if status(ConditionType.SUSPENDED) == "True":
        return "Suspended"  # before what it waits for: no prompt wakes it
    if status(ConditionType.INPUT_REQUIRED) == "True":
        return "InputRequired"
    if status(ConditionType.QUEUED) == "True":
        return "Queued"
    if status(ConditionType.HARNESS_READY) == "True" or reason(ConditionType.HARNESS_READY) in _STARTED_BEFORE:
        return "Running"
    return "Pending"
