"""What the parts of the plan share: how pods are taken away, and which epoch is above all others. Pure.

With grace first, by force when a node is dead.
"""

from datetime import timedelta

from towline.controller.actions import DeletePod, DeleteWorkspace, MarkSandboxDeleted, MarkSandboxSuspended, Plan
from towline.controller.seen import Observed, PodSeen

OVERDUE = timedelta(seconds=30)
"""A pod that should have been gone this long ago is on a dead node: it is fenced already, and now forced out."""


def delete(pod: PodSeen, seen: Observed, made: Plan) -> None:
    """With the grace that its manifest gives; by force, once, when it should have been gone for long."""
    if pod.deadline is None:
        made.do(DeletePod(pod.name, pod.uid, pod.harness))
    elif not pod.forced and overdue(pod, seen, made):
        made.do(DeletePod(pod.name, pod.uid, pod.harness, grace_seconds=0))


def overdue(pod: PodSeen, seen: Observed, made: Plan) -> bool:
    """Whether it counts as gone although it is not; if it may come to that, the plan looks again then."""
    if pod.deadline is None:
        return False
    if given_up(pod, seen):
        return True
    made.later(pod.deadline + OVERDUE - seen.now)
    return False


def given_up(pod: PodSeen, seen: Observed) -> bool:
    """Whether a pod that is still there counts as gone."""
    return pod.deadline is not None and seen.now >= pod.deadline + OVERDUE


def next_epoch(seen: Observed) -> int:
    """Above everything that was ever granted or raised."""
    raised = seen.store.state.epoch if seen.store is not None else 0
    return max([raised, seen.run.epoch, *(pod.number for pod in seen.harnesses)]) + 1


def release_sandbox(seen: Observed, made: Plan) -> None:
    """The run is over: the gateway is told, so that it dials nothing that is going, and the pods go."""
    if seen.stored and seen.store is not None and seen.store.sandbox.state in ("Ready", "Suspended"):
        made.do(MarkSandboxDeleted(seen.store.sandbox.name))
    for pod in seen.sandboxes:
        delete(pod, seen, made)


def put_sandbox_away(seen: Observed, made: Plan) -> None:
    """The run needs none for a while. Where its workspace is kept it is suspended, elsewhere released."""
    if seen.facts is None or not seen.facts.keeps_workspace:
        release_sandbox(seen, made)
        return
    if seen.stored and seen.store is not None and seen.store.sandbox.state == "Ready":
        made.do(MarkSandboxSuspended(seen.store.sandbox.name))
    for pod in seen.sandboxes:
        delete(pod, seen, made)


def release_workspace(seen: Observed, made: Plan) -> None:
    """Nobody mounts it any more. A run of which nothing can be known now may have had one, too."""
    if seen.facts is None or seen.facts.keeps_workspace:
        made.do(DeleteWorkspace())
