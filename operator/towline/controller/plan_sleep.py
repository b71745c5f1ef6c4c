"""A run that waits for a prompt without a harness, its part of the plan: what is put away, and what wakes it. Pure.

Called by `plan.py`; `conditions.py` asks the same question. Whether a run rests follows from the store alone: it has
answered, nobody has said anything since, and it is not due to finish. So it does not matter how its last harness ended,
nor whether that was seen.
"""

from datetime import datetime, timedelta

from towline.clock import moment
from towline.controller.actions import Plan
from towline.controller.plan_pods import delete, given_up, put_sandbox_away
from towline.controller.seen import Observed
from towline.exit_codes import NO_CRASH

ASLEEP = "Asleep"
"""Reason of HarnessReady while a run rests, and what became of the harness before the one that wakes it."""


def resting(seen: Observed) -> bool:
    """Whether the run needs no harness now and has none."""
    pod = seen.harness
    if not seen.awaits_prompt or (pod is not None and pod.alive and not given_up(pod, seen)):
        return False
    due = finish_at(seen)
    return due is None or due > seen.now


def finish_at(seen: Observed) -> datetime | None:
    """When a waiting run is to end for want of a prompt; its harness does it, and is woken for it."""
    waiting = moment(seen.store.state.waiting) if seen.store is not None else None
    if waiting is None or seen.facts is None or seen.facts.finish_after_seconds is None:
        return None
    return waiting + timedelta(seconds=seen.facts.finish_after_seconds)


def told(seen: Observed) -> bool:
    """Whether the status says so already."""
    return seen.run.condition("HarnessReady").get("reason") == ASLEEP


def asleep(seen: Observed, made: Plan) -> None:
    """No pod is needed. A crashed one stays for its log: it counts once there is something to do again."""
    for pod in seen.harnesses:
        crashed = pod.ended is not None and not pod.ended.disruption and pod.ended.exit_code not in NO_CRASH
        if pod.number < seen.run.epoch or (told(seen) and not crashed):
            delete(pod, seen, made)
    put_sandbox_away(seen, made)
    if (due := finish_at(seen)) is not None:
        made.later(due - seen.now)
