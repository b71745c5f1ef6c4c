"""A pod of ours, harness or sandbox, to what matters of it. Pure.

Called by `observe.py`, the cache and the sweep. What the labels say is read here, what the status says in
`kube/pod_status.py`.
"""

from collections.abc import Mapping
from typing import Any

from towline.clock import moment
from towline.controller.seen import PodSeen
from towline.kube.pod_status import status_of_pod
from towline.naming import (
    EPOCH_LABEL,
    GENERATION_LABEL,
    HARNESS_CONTAINER,
    ROLE_LABEL,
    RUN_NAMESPACE_LABEL,
    RUN_UID_LABEL,
    SANDBOX_CONTAINER,
)


def pod_seen(pod: Mapping[str, Any]) -> PodSeen:
    """A pod with labels of ours; of metadata alone, what they say. One without a number has 0, which nothing counts."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    harness = labels.get(ROLE_LABEL) == "harness"
    number = labels.get(EPOCH_LABEL if harness else GENERATION_LABEL, "")
    status = status_of_pod(pod, HARNESS_CONTAINER if harness else SANDBOX_CONTAINER)
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        run_uid=labels.get(RUN_UID_LABEL, ""),
        run_namespace=labels.get(RUN_NAMESPACE_LABEL, ""),
        harness=harness,
        number=int(number) if number.isdigit() else 0,
        version=int(metadata.get("resourceVersion") or 0),
        ip=status.ip,
        running=status.running,
        started=status.started,
        deadline=moment(metadata.get("deletionTimestamp")),
        forced=bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") == 0,
        ended=status.ended,
        trouble=status.trouble,
    )
