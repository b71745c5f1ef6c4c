"""How a run ended, if it has. Pure.

The event log says it: the terminal event closes the log, once. Only a run that never had a log, or lost it, is judged
here. Read by `plan.py` and `status.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from towline.api.conditions import OUTCOMES
from towline.clock import moment
from towline.controller.seen import Observed, OutcomeKind, RunSeen
from towline.events.event import Event

DEADLINE_EXCEEDED = "DeadlineExceeded"

ABSENCE_BELIEVED = timedelta(seconds=60)
"""A store may be empty for a moment, in a failover to a replica that is still loading; an outcome is for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: OutcomeKind
    reason: str
    message: str = ""
    at: datetime
    result: Mapping[str, Any] | None = None
    """text, truncated, sha256 of the final answer."""


def outcome(seen: Observed) -> Outcome | None:
    """None while the run may still go on."""
    if seen.store is not None and seen.store.terminal is not None:
        return _told(seen.store.terminal, seen.now)
    if seen.history_lost and seen.since_absent >= ABSENCE_BELIEVED:
        message = "the event store answers and has no history of the run"
        return Outcome(kind="Failed", reason="StoreLost", message=message, at=seen.now)
    if seen.run.cancel and not seen.stored and (seen.history_lost or "resolved" not in seen.run.status):
        return Outcome(kind="Cancelled", reason="Cancelled", message=seen.run.cancel_reason, at=seen.now)
    return None


def recorded(run: RunSeen) -> Outcome:
    """The outcome that the status of a finished run has, which nothing changes."""
    told = run.condition("Succeeded")
    kind: Any = run.status["phase"]
    at = moment(run.status.get("completionTime")) or datetime.min.replace(tzinfo=UTC)
    reason, message = told.get("reason", ""), told.get("message", "")
    return Outcome(kind=kind, reason=reason, message=message, at=at, result=run.status.get("result"))


def _told(terminal: Event, now: datetime) -> Outcome:
    data, at = terminal.payload, moment(terminal.time) or now
    if terminal.type == "run.completed":
        return Outcome(kind="Succeeded", reason="Completed", at=at, result=data.get("result"))
    reason, message = str(data.get("reason") or ""), str(data.get("message") or "")
    if terminal.type == "run.cancelled":
        return Outcome(kind="Cancelled", reason="Cancelled", message=message or reason, at=at)
    if reason not in OUTCOMES:
        reason, message = "InternalError", f"{reason}: {message}"
    return Outcome(kind="Failed", reason=reason, message=message, at=at)
