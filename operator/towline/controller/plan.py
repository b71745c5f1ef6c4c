"""What the operator does next for a run: a pure function from what it sees to the actions that are due.

Called by `reconcile.py`. Level-triggered: it looks at the run, its pods and its state in the store as they are, never
at what happened before, so that a missed or doubled notice, and an operator killed between any two actions, change
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from towline.clock import moment
from towline.controller import plan_end, plan_sandbox, plan_sleep
from towline.controller.actions import (
    AddFinalizer,
    CreateHarness,
    Finish,
    Grant,
    Plan,
    RaiseEpoch,
    RegisterHarness,
    RequestCancel,
    StoreSnapshot,
)
from towline.controller.outcome import ABSENCE_BELIEVED, DEADLINE_EXCEEDED, outcome
from towline.controller.plan_pods import delete, next_epoch, overdue, put_sandbox_away
from towline.controller.plan_sleep import ASLEEP
from towline.controller.seen import Observed
from towline.controller.story import ON_PURPOSE
from towline.exit_codes import NO_CRASH, HarnessExit
from towline.kube.pod_status import Ended
from towline.naming import FINALIZER

CANCEL_GRACE = timedelta(seconds=4)
"""How long a cancelled harness may take to end by itself; then it is fenced and its pod deleted, so that the run has
ended within 5 s whatever its processes do."""

RECENT = timedelta(minutes=5)
"""Losses within this time delay the next harness: 1, 2, 4, 8, 16 s, for the five that the status remembers."""

SKEW = timedelta(minutes=1)
"""How far the clocks of two machines may be apart. More is a clock that was set back."""

MISSING_RECHECK = timedelta(seconds=30)
"""What a run waits for is watched, but for Secrets and other runs."""

CRASHES_AT_ONE_POINT = 3
"""So many in a row, and another try would only cost more: CrashLoop."""

SUSPENDED = "Suspended"
"""What became of a harness that was put away on purpose."""

VANISHED = "Deleted"
"""…and of one whose pod is gone, by whatever hand."""


def plan(seen: Observed) -> Plan:
    """The actions that are due now; none when there is only something to wait for."""
    made = Plan()
    run = seen.run
    if run.deleting_since is not None:
        plan_end.deleting(seen, run.deleting_since, made)
    elif run.finished or outcome(seen) is not None:
        plan_end.finished(seen, made)
    elif (reason := _cancel_reason(seen, made)) is not None:
        _cancelling(seen, reason, made)
    elif seen.known is None or seen.facts is None:
        _without_snapshot(seen, made)
    elif run.suspend:
        _suspended(seen, made)
    else:
        _running(seen, made)
    return made


# -- the beginning ---------------------------------------------------------------------------------------------------


def _without_snapshot(seen: Observed, made: Plan) -> None:
    if seen.history_lost:
        made.later(ABSENCE_BELIEVED - seen.since_absent)
    elif seen.store is not None and seen.proposal is not None:
        made.do(StoreSnapshot())
        if not seen.run.suspend:
            _start(seen, 1, made)
    elif seen.missing is not None:
        made.later(MISSING_RECHECK)


def _start(seen: Observed, epoch: int, made: Plan, ended: Ended | None = None, crashed: bool = False) -> None:
    """A harness under a new epoch: granted in the status, then raised in the store, then a pod."""
    if FINALIZER not in seen.run.finalizers:
        made.do(AddFinalizer())
    lost = None if ended is None or ended.reason in ON_PURPOSE else ended
    made.do(Grant(epoch, ended, crashed), RaiseEpoch(epoch, lost), CreateHarness(epoch))


# -- the harness -----------------------------------------------------------------------------------------------------


def _running(seen: Observed, made: Plan) -> None:
    _remove_stale(seen, made)
    run, pod, known = seen.run, seen.harness, next_epoch(seen) - 1
    if run.epoch == 0 or known > run.epoch:
        # The store begins with epoch 1, before any was granted. More than was granted means that the API server's
        # state was restored from a backup.
        _start(seen, known if (run.epoch, known) == (0, 1) else known + 1, made)
    elif plan_sleep.resting(seen):
        plan_sleep.asleep(seen, made)
        return
    elif pod is None and run.pod_uid:
        _lost(seen, Ended(reason=ASLEEP if plan_sleep.told(seen) else VANISHED, disruption=True), made)
    elif pod is None:
        # Granted, and then we were interrupted or refused. Everything up to the pod may be repeated.
        if FINALIZER not in run.finalizers:
            made.do(AddFinalizer())
        made.do(RaiseEpoch(run.epoch, _recorded_loss(seen)), CreateHarness(run.epoch))
    elif pod.ended is not None:
        _lost(seen, replace(pod.ended, disruption=pod.ended.disruption or pod.deleting), made)
    elif overdue(pod, seen, made):
        delete(pod, seen, made)
        _lost(seen, Ended(reason="NodeLost", disruption=True, at=pod.deadline), made)
    elif seen.store is not None and not seen.store.registered:
        made.do(RegisterHarness(run.epoch))
    if not any(isinstance(action, Finish) for action in made.actions):
        plan_sandbox.plan(seen, made)


def _lost(seen: Observed, ended: Ended, made: Plan) -> None:
    run, facts = seen.run, seen.facts
    assert facts is not None, "the running plan has the facts"
    crashed = not ended.disruption and ended.exit_code not in NO_CRASH
    if run.was_suspended:
        _start(seen, run.epoch + 1, made, Ended(reason=SUSPENDED, at=ended.at))
    elif ended.reason == ASLEEP or ended.exit_code == HarnessExit.ASLEEP:
        _wake(seen, ended, made)
    elif ended.exit_code == HarnessExit.SEAL_FAILED:
        _fail(seen, "SealFailed", "the harness could not seal itself, so it did not start; see its log", made)
    elif crashed and run.crashes >= facts.backoff_limit:
        message = f"the harness ended {run.crashes + 1} times, the last time with {ended}"
        _fail(seen, "BackoffLimitExceeded", message, made)
    elif crashed and (at := _crashes_here(seen)) + 1 >= CRASHES_AT_ONE_POINT:
        point = f"at event {seen.store.state.progress}" if seen.store is not None else "at one point"
        _fail(seen, "CrashLoop", f"{at + 1} harnesses in a row crashed {point}, the last one with {ended}", made)
    elif (wait := _not_before(seen, ended, _losses(seen)) - seen.now) > timedelta():
        made.later(wait)
    else:
        _start(seen, run.epoch + 1, made, ended, crashed)


def _wake(seen: Observed, ended: Ended, made: Plan) -> None:
    """There is something to do for a run that slept: at once, unless the last harness woken for it did nothing."""
    before = _attempts(seen)
    in_vain = any(each["reason"] == ASLEEP and _at_this_point(each, seen) for each in before[-1:])
    if in_vain and (wait := _not_before(seen, ended, before) - seen.now) > timedelta():
        made.later(wait)
    else:
        _start(seen, seen.run.epoch + 1, made, Ended(reason=ASLEEP, at=ended.at))


def _crashes_here(seen: Observed) -> int:
    """The last harnesses in a row that crashed where the run still stands; those that were disturbed aside."""
    crashed = [each for each in _attempts(seen) if each.get("crashed")]
    return len(list(takewhile(lambda each: _at_this_point(each, seen), reversed(crashed))))


def _at_this_point(attempt: Mapping[str, Any], seen: Observed) -> bool:
    return seen.store is not None and attempt.get("progress") == seen.store.state.progress


def _attempts(seen: Observed) -> Sequence[Mapping[str, Any]]:
    """What became of the last harnesses."""
    return seen.run.status.get("attempts") or ()


def _losses(seen: Observed) -> Sequence[Mapping[str, Any]]:
    """…of those that nobody put away on purpose."""
    return [each for each in _attempts(seen) if each.get("reason") not in ON_PURPOSE]


def _not_before(seen: Observed, ended: Ended, attempts: Sequence[Mapping[str, Any]]) -> datetime:
    """When the next harness may start: at once after the first one, later with each other of `attempts` lately.

    Of a pod that is gone nobody knows when it ended; then the loss before counts. What lies far ahead was told by a
    clock that has been set back since, and is not waited for.
    """
    ends = [end for each in attempts if (end := moment(each.get("endTime")))]
    recent = [end for end in ends if -SKEW < seen.now - end < RECENT]
    if not recent:
        return seen.now
    last = ended.at if ended.at is not None and ended.at < seen.now + SKEW else max(recent)
    return last + timedelta(seconds=2 ** (len(recent) - 1))


def _recorded_loss(seen: Observed) -> Ended | None:
    """What became of the harness before the granted one, for the log: as granted, or as its pod still shows."""
    before = seen.run.epoch - 1
    attempts = [each for each in _attempts(seen) if each["epoch"] == before]
    if not attempts or attempts[-1].get("reason") in ON_PURPOSE:
        return None
    shown = next((pod.ended for pod in seen.harnesses if pod.number == before and pod.ended), None)
    return shown or Ended(reason=attempts[-1].get("reason") or VANISHED)


def _remove_stale(seen: Observed, made: Plan) -> None:
    """Harnesses of former epochs: they can write nothing any more. The last one is kept, once ended, for its log."""
    for pod in seen.harnesses:
        if pod.number < seen.run.epoch and not (pod.ended is not None and pod.number == seen.run.epoch - 1):
            delete(pod, seen, made)


def _fail(seen: Observed, reason: str, message: str, made: Plan) -> None:
    made.do(Finish(next_epoch(seen), "Failed", reason, message))


# -- suspending, cancelling ------------------------------------------------------------------------------------------


def _suspended(seen: Observed, made: Plan) -> None:
    for pod in seen.harnesses:
        if pod.alive or pod.number < seen.run.epoch:
            delete(pod, seen, made)
    put_sandbox_away(seen, made)


def _cancel_reason(seen: Observed, made: Plan) -> str | None:
    """Why the run is to end, if it is: a person's wish first, then its deadline. Only the store can be told."""
    if seen.store is None or not seen.stored:
        return None
    if seen.run.cancel:
        return seen.store.state.cancel or seen.run.cancel_reason or "Cancelled"
    if seen.store.state.cancel is not None:
        return seen.store.state.cancel
    limit, active = seen.facts.active_deadline_seconds if seen.facts is not None else None, active_time(seen)
    if limit is not None and active is not None:
        if active >= timedelta(seconds=limit):
            return DEADLINE_EXCEEDED
        if seen.paused_since is None:
            made.later(timedelta(seconds=limit) - active)
    return None


def active_time(seen: Observed) -> timedelta | None:
    """For how long the run has been working, pauses not counted; None before its first harness."""
    status = seen.run.status
    if (start := moment(status.get("startTime"))) is None:
        return None
    return (seen.paused_since or seen.now) - start - timedelta(seconds=int(status.get("pausedSeconds") or 0))


def _cancelling(seen: Observed, reason: str, made: Plan) -> None:
    assert seen.store is not None, "asked of a stored run"
    if seen.store.state.cancel is None:
        made.do(RequestCancel(reason))
    alive = [pod for pod in seen.harnesses if pod.alive]
    if alive and not all(overdue(pod, seen, made) for pod in alive) and seen.since_cancel < CANCEL_GRACE:
        made.later(CANCEL_GRACE - seen.since_cancel)
        return
    if reason == DEADLINE_EXCEEDED and not seen.run.cancel:
        _fail(seen, DEADLINE_EXCEEDED, "the run took longer than its activeDeadlineSeconds", made)
    else:
        made.do(Finish(next_epoch(seen), "Cancelled", reason))
    for pod in alive:
        delete(pod, seen, made)  # fenced, it can do no harm; but it may still pay a model to talk
