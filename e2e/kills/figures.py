"""How long it took from a kill to the next event of the run, told by role. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median

from towline.clock import moment
from towline.events.event import Event

WORKERS = ("harness", "gateway")
"""Whose events are the run's work; the operator's only tell of it."""


def seconds_to_next(log: Sequence[Event], killed_at: datetime, sources: Sequence[str] = ()) -> float | None:
    """From the kill to the first event behind it, of these sources if any are named; None when there is none."""
    for event in log:
        at = moment(event.time)
        assert at is not None, "every event has a time"
        if at > killed_at and (not sources or event.src in sources):
            return (at - killed_at).total_seconds()
    return None


def medians(waits: Mapping[str, Sequence[float]]) -> str:
    """Of all, and by role: `1.9 (harness 1.2, operator 15.3)`."""
    every = [seconds for each in waits.values() for seconds in each]
    if not every:
        return "-"
    by_role = ", ".join(f"{role} {median(each):.2f}" for role, each in waits.items() if each)
    return f"{median(every):.2f} ({by_role})"
