"""The status of a run, computed anew from what is seen, in wire form. Pure.

Called by `reconcile.py` after the actions. From the former status it takes only what cannot be observed twice: when a
condition changed, since when a sandbox was wanted, pauses, and an outcome, which is written once.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from towline.api.agentrun_status import AgentRunStatus
from towline.api.conditions import TERMINAL_PHASES, Condition, Conditions, phase
from towline.api.conditions import ConditionType as Type
from towline.clock import moment, rfc3339
from towline.controller import conditions
from towline.controller.conditions import Said
from towline.controller.outcome import Outcome, outcome, recorded
from towline.controller.plan_sandbox import requested_at, wanted_generation
from towline.controller.seen import Observed
from towline.kube.pod_status import Ended
from towline.naming import harness_pod_name, sandbox_name

COUNTERS_EVERY = timedelta(seconds=5)
"""A busy run changes its counters many times a second; nobody reads them that fast in `kubectl`."""

KEPT_ATTEMPTS = 5
MAX_FAILURE_MESSAGE = 1024
MAX_RESULT_CHARACTERS = 4096
MAX_CONDITION_MESSAGE = 2048

_BEHIND = {
    "Pending": Type.HARNESS_READY,
    "Queued": Type.QUEUED,
    "Running": Type.HARNESS_READY,
    "InputRequired": Type.INPUT_REQUIRED,
    "Suspended": Type.SUSPENDED,
    "Cancelling": Type.SUCCEEDED,
}
"""Phase → the condition that has its reason."""

_DEFERRABLE = ("lastActivityTime", "turns", "toolCalls", "usage", "stream")


def status_of(seen: Observed) -> dict[str, Any]:
    """The whole status as it ought to be. Equal to the former one when nothing is new."""
    run, old = seen.run, seen.run.status
    ended = None if run.finished else outcome(seen)
    told = _conditions(seen, ended)
    new: dict[str, Any] = {
        "observedGeneration": run.generation,
        "phase": old["phase"] if run.finished else phase(_parsed(told)),
        "conditions": told,
    }
    if (started := old.get("startTime") or _start_time(seen)) is not None:
        new["startTime"] = started
    if run.finished:
        new |= {name: old[name] for name in ("completionTime", "result", "failure") if name in old}
    elif ended is not None:
        new |= _ending(ended)
    new |= _pauses(seen, told, over=run.finished or ended is not None)
    if run.crashes or run.epoch:
        new["attempt"] = run.crashes
    if run.epoch:
        new |= {"epoch": run.epoch, "harness": _harness(seen)}
    if attempts := old.get("attempts"):
        new["attempts"] = attempts
    new |= _resolved(seen) | _sandbox(seen) | _counters(seen)
    return new


def granted(seen: Observed, epoch: int, ended: Ended | None, crashed: bool) -> dict[str, Any]:
    """The former status with one more epoch: what was the harness becomes an attempt, which got as far as the run."""
    run, pod = seen.run, seen.harness
    old = dict(run.status)
    if ended is not None:
        attempt: dict[str, Any] = {"epoch": run.epoch, "podName": harness_pod_name(run.uid, run.epoch)}
        attempt |= {"reason": ended.reason, "crashed": crashed}
        attempt["progress"] = seen.store.state.progress if seen.store is not None else 0
        if pod is not None and pod.started is not None:
            attempt["startTime"] = seconds(pod.started)
        attempt["endTime"] = seconds(ended.at or seen.now)
        old["attempts"] = [*(old.get("attempts") or ()), attempt][-KEPT_ATTEMPTS:]
    old["attempt"] = run.crashes + int(crashed)
    old["epoch"] = epoch
    old["harness"] = {"podName": harness_pod_name(run.uid, epoch), "podUID": "", "restarts": epoch - 1}
    return old


def due(old: Mapping[str, Any], new: Mapping[str, Any], since_written: timedelta) -> bool:
    """Whether to write `new` now: conditions at once, what changes with every event only now and then."""
    if old == new:
        return False
    return since_written >= COUNTERS_EVERY or _at_once(old) != _at_once(new)


def phase_to_tell(seen: Observed, status: Mapping[str, Any]) -> tuple[str, str] | None:
    """The phase and its reason, if the run's log has not been told; of an end its terminal event tells."""
    new = status["phase"]
    if not seen.stored or seen.store is None or seen.store.state.closed is not None or new in TERMINAL_PHASES:
        return None
    if new == (seen.store.state.phase or "Pending"):
        return None
    return new, next(each["reason"] for each in status["conditions"] if each["type"] == _BEHIND[new])


def seconds(moment: datetime) -> str:
    """As the API server writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check(status: Mapping[str, Any]) -> AgentRunStatus:
    """The status as the model has it; raises pydantic.ValidationError for one that the API server would refuse."""
    return AgentRunStatus.from_wire(status)


def _at_once(status: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in status.items() if name not in _DEFERRABLE}
    if "harness" in kept:
        # The pod's UID comes with the pod's first breath, and a condition soon after.
        kept["harness"] = {name: value for name, value in kept["harness"].items() if name != "podUID"}
    return kept


def _conditions(seen: Observed, ended: Outcome | None) -> list[dict[str, Any]]:
    """In the order of the documentation, each with the time of its last change of status."""
    if seen.run.finished:
        ended = recorded(seen.run)
    return [_condition(seen, kind, said) for kind, said in conditions.all_of(seen, ended).items()]


def _condition(seen: Observed, kind: str, said: Said) -> dict[str, Any]:
    old = seen.run.condition(kind)
    changed = old.get("status") != said.status
    return {
        "type": kind,
        "status": said.status,
        "reason": said.reason,
        "message": said.message[:MAX_CONDITION_MESSAGE],
        "lastTransitionTime": seconds(seen.now) if changed else old["lastTransitionTime"],
        "observedGeneration": seen.run.generation,
    }


def _parsed(told: list[dict[str, Any]]) -> Conditions:
    return tuple(Condition.from_wire(each) for each in told)


def _start_time(seen: Observed) -> str | None:
    started = [pod.started for pod in seen.harnesses if pod.started is not None]
    return seconds(min(started)) if started else None


def _ending(ended: Outcome) -> dict[str, Any]:
    told: dict[str, Any] = {"completionTime": seconds(ended.at)}
    if ended.kind != "Succeeded":
        told["failure"] = {"reason": ended.reason, "message": ended.message[:MAX_FAILURE_MESSAGE]}
    elif ended.result is not None:
        text = str(ended.result.get("text") or "")
        told["result"] = {
            "text": text[:MAX_RESULT_CHARACTERS],
            "truncated": bool(ended.result.get("truncated")) or len(text) > MAX_RESULT_CHARACTERS,
            "sha256": str(ended.result.get("sha256") or ""),
        }
    return told


def _pauses(seen: Observed, told: list[dict[str, Any]], *, over: bool) -> dict[str, Any]:
    """For how long the deadline stood still: while suspended, and while a person is waited for."""
    old = seen.run.status
    true = {each["type"] for each in told if each["status"] == "True"}
    paused = not over and bool(true & {"Suspended", "InputRequired"})
    since, before = moment(old.get("pausedSince")), int(old.get("pausedSeconds") or 0)
    new: dict[str, Any] = {}
    if paused:
        new["pausedSince"] = old.get("pausedSince") or seconds(seen.paused_since or seen.now)
    elif since is not None:
        before += max(int((seen.now - since).total_seconds()), 0)
    if before:
        new["pausedSeconds"] = before
    return new


def _harness(seen: Observed) -> dict[str, Any]:
    run, pod = seen.run, seen.harness
    return {
        "podName": harness_pod_name(run.uid, run.epoch),
        "podUID": run.pod_uid or (pod.uid if pod is not None else ""),
        "restarts": run.epoch - 1,
    }


def _resolved(seen: Observed) -> dict[str, Any]:
    if seen.facts is not None:
        return {"resolved": {"digest": seen.facts.digest}}
    return {"resolved": seen.run.status["resolved"]} if "resolved" in seen.run.status else {}


def _sandbox(seen: Observed) -> dict[str, Any]:
    """The sandbox that is wanted or was made last; nothing before the first."""
    old: dict[str, Any] = dict(seen.run.status.get("sandbox") or {})
    if (known := seen.known) is None:
        return {"sandbox": old} if old else {}
    record = known.sandbox
    wanted = None if known.state.closed else wanted_generation(seen)
    if wanted is None and record.state == "Absent":
        return {"sandbox": old} if old else {}
    name = sandbox_name(seen.run.uid, wanted) if wanted is not None else record.name or old.get("name", "")
    new: dict[str, Any] = {"name": name, "state": "Starting" if wanted is not None else record.state, "fromPool": False}
    if old.get("name") == name:
        new |= {key: old[key] for key in ("requestedAt", "readyAt") if key in old}
    new.setdefault("requestedAt", rfc3339(requested_at(seen, name)))
    if new["state"] == "Ready":
        new.setdefault("readyAt", rfc3339(seen.now))
    return {"sandbox": new}


def _counters(seen: Observed) -> dict[str, Any]:
    """As the store has them; as they stood when it does not answer, or has lost them."""
    old = seen.run.status
    if (known := seen.known) is None:
        return {name: old[name] for name in (*_DEFERRABLE, "pendingApprovals") if name in old}
    state, totals = known.state, known.state.totals
    usage = {
        "inputTokens": totals.input_tokens,
        "outputTokens": totals.output_tokens,
        "cachedInputTokens": totals.cached_input_tokens,
        "totalTokens": totals.input_tokens + totals.output_tokens,
    }
    if seen.facts.has_price if seen.facts is not None else "costMicroUSD" in old.get("usage", {}):
        usage["costMicroUSD"] = totals.cost_micro_usd
    counters: dict[str, Any] = {
        "stream": {"key": seen.run.ref.keys.log, "incarnation": state.incarnation, "lastSeq": state.head},
        "turns": totals.turns,
        "toolCalls": totals.tool_calls,
        "usage": usage,
        "pendingApprovals": 0,
    }
    if known.last is not None:
        counters["lastActivityTime"] = known.last.time
    return counters


assert set(TERMINAL_PHASES) == {"Succeeded", "Failed", "Cancelled"}, "an outcome's kind is its phase"
