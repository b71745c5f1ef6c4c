"""When the kubelet ends a pod of a run without being asked. Pure."""

from towline.api.snapshot import Snapshot

SLACK_SECONDS = 60
"""The operator ends an overdue run in good order; this long after that the kubelet does it."""


def pod_deadline(snapshot: Snapshot) -> int | None:
    """The age in seconds that no pod of the run needs to exceed; None when there is no such age.

    The kubelet counts a pod's whole age, the run only the time in which it waits for no person: of one that people talk
    to nobody can say beforehand how old its pods become.
    """
    if snapshot.active_deadline_seconds is None or snapshot.interactive:
        return None
    return snapshot.active_deadline_seconds + SLACK_SECONDS
