"""Removes what no run owns any more: pods whose run is gone, and histories of runs that were deleted after their end.

Called by the sweep. A pod is only ever deleted by its UID, after a list that is newer than the pod has shown that its
run does not exist; a run that does exist is looked at instead.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from towline.controller.cache import Cache, ours
from towline.controller.carry_out import HISTORY_SECONDS
from towline.controller.pods import pod_seen
from towline.controller.queue import WorkQueue
from towline.controller.run_objects import Key, key_of
from towline.errors import StoreUnavailable
from towline.events import index, pods, runs
from towline.events.event import RunRef
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.errors import Conflict
from towline.kube.kinds import AGENT_RUN, POD
from towline.naming import RUN_NAMESPACE_LABEL, RUN_UID_LABEL

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Reaper:
    kube: Kube
    store: Store
    cache: Cache
    queue: WorkQueue[Key]
    installation: str
    _suspects: set[RunRef] = field(default_factory=set)

    async def orphans(self, listed: Sequence[Object]) -> None:
        """`listed` are the metadata of all pods with our labels, as they were a moment ago."""
        unknown = [obj for obj in listed if self.cache.key(obj["metadata"]["labels"][RUN_UID_LABEL]) is None]
        for namespace in dict.fromkeys(obj["metadata"]["labels"].get(RUN_NAMESPACE_LABEL, "") for obj in unknown):
            keys = await self._keys(namespace)
            for obj in unknown:
                labels = obj["metadata"]["labels"]
                if labels.get(RUN_NAMESPACE_LABEL, "") != namespace:
                    continue
                if (key := keys.get(labels[RUN_UID_LABEL])) is not None:
                    self.queue.add(key)
                elif ours(obj, pod_seen(obj)) and "deletionTimestamp" not in obj["metadata"]:
                    await self._delete(obj)

    async def histories(self) -> None:
        """What the store still has of runs that the cluster has no more; believed at the second sight."""
        try:
            stored = set(await index.members(self.store, self.installation))
        except StoreUnavailable:
            return
        there = {obj["metadata"]["uid"] for obj in await self.kube.list(AGENT_RUN, metadata_only=True)}
        gone = {run for run in stored if run.uid not in there}
        for run in gone & self._suspects:
            await runs.expire(self.store, run, HISTORY_SECONDS)
            await index.remove(self.store, self.installation, run)
            log.info("history of a deleted run let go", extra={"fields": {"run": run.namespace, "uid": run.uid}})
        self._suspects = gone - self._suspects

    async def _keys(self, namespace: str) -> dict[str, Key]:
        """UID → key of every run of a namespace, finished ones too."""
        if not namespace:
            return {}
        found = await self.kube.list(AGENT_RUN, namespace, metadata_only=True)
        return {obj["metadata"]["uid"]: key_of(obj) for obj in found}

    async def _delete(self, obj: Object) -> None:
        metadata = obj["metadata"]
        fields = {"pod": f"{metadata['namespace']}/{metadata['name']}", "uid": metadata["uid"]}
        try:
            await self.kube.delete(POD, metadata["namespace"], metadata["name"], uid=metadata["uid"])
            await pods.forget_harness(self.store, metadata["name"])
        except (Conflict, StoreUnavailable) as fault:
            fields["cause"] = str(fault)
        log.warning("orphaned pod deleted", extra={"fields": fields})
