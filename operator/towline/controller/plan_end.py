"""The end of a run: what goes when it has its outcome, and when somebody deletes it. Part of the plan, pure.

Called by `plan.py`. Nothing here waits for ever: not for the store, not for a pod that does not go.
"""

from datetime import datetime, timedelta

from towline.clock import moment
from towline.controller.actions import DeleteRun, ExpireHistory, Finish, Plan, RequestCancel, Settle
from towline.controller.outcome import outcome, recorded
from towline.controller.plan_pods import OVERDUE, delete, next_epoch, overdue, release_sandbox, release_workspace
from towline.controller.seen import Observed, PodSeen
from towline.naming import DELETE_AFTER_ANNOTATION, FINALIZER, SETTLED_ANNOTATION

EXIT_GRACE = timedelta(seconds=5)
"""How long a harness that has finished the run may take to end by itself; then its pod is deleted."""

LET_GO = timedelta(seconds=90)
"""After this, a pod that even force does not remove holds up no deletion any more; the reaper stays with it."""

STORE_PATIENCE = timedelta(seconds=30)
"""How long the deletion of a run waits for the store to hear of it."""

DELETED = "Deleted"
"""Why a run is cancelled whose object is deleted."""


def finished(seen: Observed, made: Plan) -> None:
    """Pods go, the harness first: nothing must act on a sandbox that is being destroyed."""
    run, ended = seen.run, outcome(seen)
    completed = moment(run.status.get("completionTime")) or (ended.at if ended else seen.now)
    due = None if run.ttl_seconds is None else completed + timedelta(seconds=run.ttl_seconds)
    if run.finished and due is not None and due <= seen.now:
        made.do(DeleteRun(due))
        return
    if run.finished and _log_is_open(seen):
        _end_again(seen, made)
    for pod in seen.harnesses:
        stay = seen.finished_pod_retention if pod.ended is not None else EXIT_GRACE
        if completed + stay > seen.now and not pod.deleting:
            made.later(completed + stay - seen.now)
        else:
            delete(pod, seen, made)
    release_sandbox(seen, made)
    if due is not None:
        made.later(due - seen.now)
    # An ended harness pod is inert; the reaper finds it if nobody else does, so it holds up no deletion.
    acting = [*(pod for pod in seen.harnesses if pod.alive), *seen.sandboxes]
    if run.finished and not any(_worth_waiting_for(pod, seen, made) for pod in acting):
        _settle(seen, due, made)


def _settle(seen: Observed, due: datetime | None, made: Plan) -> None:
    run = seen.run
    wanted = {
        DELETE_AFTER_ANNOTATION: due.strftime("%Y-%m-%dT%H:%M:%SZ") if due else None,
        SETTLED_ANNOTATION: str(run.generation),
    }
    if FINALIZER in run.finalizers or any(run.annotations.get(name) != value for name, value in wanted.items()):
        if FINALIZER in run.finalizers:
            release_workspace(seen, made)
        made.do(Settle(wanted))


def _log_is_open(seen: Observed) -> bool:
    return seen.stored and seen.store is not None and seen.store.state.closed is None


def _end_again(seen: Observed, made: Plan) -> None:
    """A store that lost the end of a log would take prompts that nobody answers, and its followers wait for ever."""
    end = recorded(seen.run)
    if end.kind == "Cancelled":
        made.do(Finish(next_epoch(seen), end.kind, end.message or end.reason))
    else:
        made.do(Finish(next_epoch(seen), end.kind, end.reason, end.message, end.result))


def deleting(seen: Observed, since: datetime, made: Plan) -> None:
    """Cancels, then cleans. Waits for the store a while, for stuck pods a while, for nothing for ever."""
    if FINALIZER not in seen.run.finalizers:
        return
    if seen.run.finished and _log_is_open(seen):
        _end_again(seen, made)
    open_log = not seen.run.finished and _log_is_open(seen)
    if open_log and seen.store is not None and seen.store.state.cancel is None:
        made.do(RequestCancel(DELETED))
    for pod in (*seen.harnesses, *seen.sandboxes):
        delete(pod, seen, made)
    alive = [pod for pod in seen.harnesses if pod.alive]
    if open_log and all(overdue(pod, seen, made) for pod in alive):
        made.do(Finish(next_epoch(seen), "Cancelled", DELETED))
    if not any(_worth_waiting_for(pod, seen, made) for pod in (*seen.harnesses, *seen.sandboxes)):
        if seen.store is not None:
            release_workspace(seen, made)
            made.do(ExpireHistory(), Settle())
        elif seen.now >= since + STORE_PATIENCE:
            release_workspace(seen, made)
            made.do(Settle())
        else:
            made.later(since + STORE_PATIENCE - seen.now)


def _worth_waiting_for(pod: PodSeen, seen: Observed, made: Plan) -> bool:
    if pod.deadline is None:
        return True
    left = pod.deadline + OVERDUE + LET_GO - seen.now
    if left <= timedelta():
        return False
    made.later(left)
    return True
