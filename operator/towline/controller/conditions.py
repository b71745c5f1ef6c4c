"""What each condition of a run says: one small function a condition, from what is seen to status, reason and message.

Called by `status.py`. Reasons come out of the closed list in `api/conditions.py`. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from towline.api.conditions import ConditionType as Type
from towline.controller import plan_sleep
from towline.controller.outcome import Outcome
from towline.controller.plan_sandbox import trouble_of, wanted_generation
from towline.controller.seen import Observed, PodSeen
from towline.controller.story import ON_PURPOSE
from towline.naming import sandbox_name
from towline.sandbox.pod_state import POLICY_NOT_ENFORCED

_NO_HINDRANCE = ("NotRequested", "Starting", "Suspended", "Lost", "StartFailed", "Released")
"""SandboxReady is False for these, and the run goes on: it needs none, or the next call gets a new one."""


@dataclass(frozen=True, slots=True)
class Said:
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def all_of(seen: Observed, ended: Outcome | None) -> dict[Type, Said]:
    """Every condition, in the order of the documentation."""
    said = {
        Type.ACCEPTED: accepted(seen),
        Type.QUEUED: Said("False", "NotQueued"),
        Type.HARNESS_READY: harness_ready(seen, ended),
        Type.SANDBOX_READY: sandbox_ready(seen, ended),
        Type.INPUT_REQUIRED: input_required(seen, ended),
        Type.SUSPENDED: suspended(seen, ended),
    }
    return said | {Type.SUCCEEDED: succeeded(seen, ended, said), Type.FINISHED: finished(ended)}


def accepted(seen: Observed) -> Said:
    if seen.accepted:
        return Said("True", "Accepted")
    if seen.missing is not None:
        return Said("False", seen.missing.reason, seen.missing.message)
    old = seen.run.condition("Accepted")
    return Said(old["status"], old["reason"], old["message"]) if old else Said("Unknown", "Accepted")


def harness_ready(seen: Observed, ended: Outcome | None) -> Said:
    pod = seen.harness
    going = seen.run.suspend and (not _acts(pod) or (pod is not None and pod.deleting))
    if ended is not None or seen.run.deleting_since is not None or going:
        return Said("False", "Released")
    if pod is not None and pod.alive and not pod.deleting:
        if pod.running:
            return Said("True", "Running")
        if pod.trouble is not None:
            return Said("False", pod.trouble.reason, pod.trouble.message)
        return Said("False", _on_its_way(seen))
    if plan_sleep.told(seen) and (seen.store is None or seen.history_lost):
        return Said("False", plan_sleep.ASLEEP)  # as it stood: the harness that wakes it must know of the sleep
    if seen.store is None:
        return Said("False", "StoreUnavailable", "the event store does not answer")
    if seen.history_lost:
        return Said("False", "StoreUnavailable", "the event store answers, and has no history of the run")
    if plan_sleep.resting(seen):
        return Said("False", plan_sleep.ASLEEP)
    if seen.harness_trouble is not None:
        return Said("False", seen.harness_trouble.reason, seen.harness_trouble.message)
    if pod is not None and pod.ended is not None:
        return Said("False", "Restarting", f"the last harness ended with {pod.ended}")
    if pod is not None or seen.run.pod_uid:  # it goes or is gone, and the next epoch is not granted yet
        return Said("False", "Waking" if _put_away(seen) else "Restarting")
    return Said("False", _on_its_way(seen))


def _put_away(seen: Observed) -> bool:
    asleep_or_released = seen.run.condition("HarnessReady").get("reason") in (plan_sleep.ASLEEP, "Released")
    return asleep_or_released or seen.run.was_suspended


def _on_its_way(seen: Observed) -> str:
    """The harness of a run's first epoch starts it; a later one wakes it, or takes over."""
    if seen.run.epoch <= 1:
        return "Starting"
    before = [each.get("reason") for each in seen.run.status.get("attempts") or ()]
    return "Waking" if before and before[-1] in ON_PURPOSE else "Restarting"


def sandbox_ready(seen: Observed, ended: Outcome | None) -> Said:
    if (known := seen.known) is None:
        old = seen.run.condition("SandboxReady")
        if ended is None:
            return Said(old["status"], old["reason"], old["message"]) if old else Said("False", "NotRequested")
        return Said("False", "Released" if old and old["reason"] != "NotRequested" else "NotRequested")
    record, wanted = known.sandbox, wanted_generation(seen)
    if ended is not None:
        return Said("False", "Released" if record.state != "Absent" else "NotRequested")
    if wanted is not None:
        return _starting(seen, sandbox_name(seen.run.uid, wanted))
    match record.state:
        case "Ready":
            return Said("True", "Ready")
        case "Lost":
            return Said("False", "Lost", f"{record.reason}: {record.message}")
        case "Failed" if record.reason == POLICY_NOT_ENFORCED:
            return Said("False", POLICY_NOT_ENFORCED, record.message)
        case "Failed":
            return Said("False", "StartFailed", f"{record.reason}: {record.message}")
        case "Suspended":
            return Said("False", "Suspended")
        case "Deleted":
            return Said("False", "Released", _not_kept(seen))
    return Said("False", "NotRequested")


def _not_kept(seen: Observed) -> str:
    """Why the workspace is gone although the run wants it kept."""
    name = seen.facts.lacks_volume if seen.facts is not None else ""
    return f"the workspace went with the pod: SandboxClass {name} has no workspace.volume to keep it in" if name else ""


def _starting(seen: Observed, name: str) -> Said:
    pod = next((each for each in seen.sandboxes if each.name == name), None)
    trouble = trouble_of(pod, seen.facts) if pod is not None else seen.sandbox_trouble
    if trouble is not None:
        return Said("False", trouble.reason, trouble.message)
    if not seen.policies_in_force:
        return Said("False", POLICY_NOT_ENFORCED, "the network policies of the sandbox namespace are being restored")
    return Said("False", "Starting")


def input_required(seen: Observed, ended: Outcome | None) -> Said:
    if ended is not None:
        return Said("False", "NotRequired")
    if seen.known is None:
        old = seen.run.condition("InputRequired")
        return Said(old["status"], old["reason"], old["message"]) if old else Said("False", "NotRequired")
    if not seen.awaits_prompt:
        return Said("False", "NotRequired")
    how = f'towline prompt -n {seen.run.namespace} {seen.run.name} "…"'
    return Said("True", "PromptAwaited", f"the run has answered and waits for the next prompt: {how}")


def suspended(seen: Observed, ended: Outcome | None) -> Said:
    if ended is None and seen.run.suspend:
        return Said("True", "UserRequested")
    if ended is None and seen.run.was_suspended and _to_be_granted(seen) and not plan_sleep.resting(seen):
        # Until the next epoch is granted: that grant must know that the harness before was put away on purpose.
        return Said("True", "UserRequested")
    return Said("False", "NotSuspended")


def succeeded(seen: Observed, ended: Outcome | None, others: Mapping[Type, Said]) -> Said:
    """Until the end its reason is what the run waits for: the one word that `kubectl get` shows beside the phase."""
    if ended is not None:
        return Said("True" if ended.kind == "Succeeded" else "False", ended.reason, ended.message)
    asked = seen.store is not None and seen.store.state.cancel is not None
    if seen.run.cancel or seen.run.deleting_since is not None or asked:
        return Said("Unknown", "Cancelling", seen.run.cancel_reason)
    if seen.missing is not None:  # also of a run that was accepted long ago
        return Said("Unknown", seen.missing.reason, seen.missing.message)
    first = (Type.ACCEPTED, Type.SUSPENDED)  # of a suspended run the rest is no matter: no prompt wakes it
    inquired = {kind: others[kind] for kind in (*first, *others)}
    waits = next((said for kind, said in inquired.items() if _holds_up(kind, said)), None)
    return Said("Unknown", waits.reason, waits.message) if waits is not None else Said("Unknown", "Running")


def _holds_up(kind: Type, said: Said) -> bool:
    match kind:
        case Type.ACCEPTED:
            return said.status == "False"
        case Type.HARNESS_READY:
            return said.status == "False" and said.reason not in ("Released", "Asleep")
        case Type.SANDBOX_READY:
            return said.status == "False" and said.reason not in _NO_HINDRANCE
        case Type.INPUT_REQUIRED | Type.SUSPENDED:
            return said.status == "True"
    return False


def finished(ended: Outcome | None) -> Said:
    return Said("True", ended.reason, ended.message) if ended is not None else Said("False", "Running")


def _acts(pod: PodSeen | None) -> bool:
    return pod is not None and pod.alive


def _to_be_granted(seen: Observed) -> bool:
    """The harness of the granted epoch has existed and is no more, or is going."""
    pod = seen.harness
    return (pod is None and bool(seen.run.pod_uid)) or (pod is not None and (pod.deleting or not pod.alive))
