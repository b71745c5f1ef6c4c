"""The sandbox's part of the plan: make the one that is wanted, tell the gateway what became of it, remove the others.

Called by `plan.py` while a run is running. The record in the store says what the gateway was told, the pods what is
so; a record's name is never used for a second sandbox.
"""

from datetime import datetime, timedelta

from towline.clock import moment
from towline.controller.actions import CreateSandbox, MarkSandboxLost, MarkSandboxReady, Plan
from towline.controller.plan_pods import delete
from towline.controller.seen import REFUSALS, Facts, Observed, PodSeen
from towline.events.sandbox import SandboxRecord
from towline.kube.pod_status import VOLUME_NOT_BOUND, Trouble
from towline.naming import sandbox_name
from towline.sandbox.pod_state import GOING, GONE, POLICY_NOT_ENFORCED, endpoint, loss_of
from towline.sandbox.provider import Loss


def plan(seen: Observed, made: Plan) -> None:
    """Adds what is due. Nothing of it waits for the harness: the two only meet in the gateway."""
    wanted = wanted_generation(seen)
    assert seen.store is not None, "asked of a stored run"
    record = seen.store.sandbox
    keep = ""
    if wanted is not None:
        keep = _bring_up(seen, wanted, made)
    elif record.state == "Ready":
        keep = _watch_over(seen, record, made)
    for pod in seen.sandboxes:
        if pod.name != keep:
            delete(pod, seen, made)


def wanted_generation(seen: Observed) -> int | None:
    """Which sandbox is to be made or is being made; None when none is."""
    if seen.store is None or seen.facts is None:
        return None
    record = seen.store.sandbox
    wanted = seen.store.state.want == "sandbox" or (seen.facts.eager and record.state == "Absent")
    return max(record.generation, 1) if wanted else None


def trouble_of(pod: PodSeen, facts: Facts | None) -> Trouble | None:
    """Why it does not start; of a volume that it waits for also who ought to give it one."""
    trouble = pod.trouble
    if trouble is None or trouble.reason != VOLUME_NOT_BOUND or facts is None:
        return trouble
    named = f"StorageClass {facts.storage_class}" if facts.storage_class else "the cluster's default StorageClass"
    return Trouble(trouble.reason, f"{trouble.message} ({named})")


def requested_at(seen: Observed, name: str) -> datetime:
    """When the operator first saw that it was wanted."""
    told = seen.run.status.get("sandbox") or {}
    return (moment(told.get("requestedAt")) if told.get("name") == name else None) or seen.now


def _bring_up(seen: Observed, generation: int, made: Plan) -> str:
    """The name of the pod to keep, or of none when it failed."""
    assert seen.facts is not None, "only wanted with the facts"
    name = sandbox_name(seen.run.uid, generation)
    pod = _named(seen, name)
    since = requested_at(seen, name)
    if pod is not None and pod.ended is not None:
        made.do(_told(name, generation, "Failed", loss_of(pod.ended)))
        return ""
    if pod is not None and pod.running and pod.ip and not pod.deleting:
        waited = round((seen.now - since) / timedelta(milliseconds=1))
        made.do(MarkSandboxReady(name, generation, endpoint(pod.ip), max(waited, 0)))
        return name
    deadline = since + timedelta(seconds=seen.facts.start_timeout_seconds)
    if seen.now >= deadline:
        trouble = trouble_of(pod, seen.facts) if pod is not None else _refused_before(seen)
        reason, message = _timed_out(name, seen.facts.start_timeout_seconds, trouble, there=pod is not None)
        made.do(MarkSandboxLost(name, generation, "Failed", reason, message))
        return ""
    made.later(deadline - seen.now)
    if pod is None and seen.policies_in_force:
        made.do(CreateSandbox(generation))
    return name


def _watch_over(seen: Observed, record: SandboxRecord, made: Plan) -> str:
    """A sandbox that is in use: keep it, or tell of its loss. One that is being deleted takes no new call."""
    name, generation = record.name, record.generation
    pod = _named(seen, name)
    if pod is None:
        made.do(_told(name, generation, "Lost", GONE))
    elif pod.ended is not None:
        loss = loss_of(pod.ended)
        made.do(_told(name, generation, "Failed" if loss.reason == POLICY_NOT_ENFORCED else "Lost", loss))
    elif pod.deleting:
        made.do(_told(name, generation, "Lost", GOING))
    else:
        return name
    return ""


def _timed_out(name: str, seconds: int, trouble: Trouble | None, *, there: bool) -> tuple[str, str]:
    """Reason and message."""
    limit = f"not started within {seconds} s"
    if trouble is not None:
        return trouble.reason, f"{limit}: {trouble.message}"
    # A volume that cannot be mounted is one cause of those that only the kubelet's events tell.
    hint = f"; the events of pod {name} say why" if there else ""
    return "StartTimeout", limit + hint


def _told(name: str, generation: int, state: str, loss: Loss) -> MarkSandboxLost:
    return MarkSandboxLost(name, generation, state, loss.reason, loss.message)


def _refused_before(seen: Observed) -> Trouble | None:
    """Why the pod could not be made so far, as the condition has it."""
    told = seen.run.condition("SandboxReady")
    return Trouble(told["reason"], told["message"]) if told and told["reason"] in REFUSALS else None


def _named(seen: Observed, name: str) -> PodSeen | None:
    return next((pod for pod in seen.sandboxes if pod.name == name), None)
