"""The claim that keeps a run's workspace while its sandbox is put away, and from one sandbox to the next. Pure."""

from typing import Any

from towline.api.quantities import written
from towline.api.snapshot import Snapshot
from towline.events.event import RunRef
from towline.manifests.labels import belongings
from towline.naming import workspace_claim_name


def workspace_claim(run: RunRef, snapshot: Snapshot, namespace: str) -> dict[str, Any] | None:
    """None where the workspace goes with the pod: the run does not ask for more, or its class has no volume."""
    volume = snapshot.sandbox.volume
    if volume is None or not snapshot.sandbox.keeps_workspace:
        return None
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "labels": belongings("sandbox", run),
            "name": workspace_claim_name(run.uid),
            "namespace": namespace,
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": written(volume.size_bytes)}},
            **({"storageClassName": volume.storage_class_name} if volume.storage_class_name else {}),
            "volumeMode": "Filesystem",
        },
    }
