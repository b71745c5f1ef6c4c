"""Removes what no run owns any more: pods and workspaces whose run is gone, histories of runs deleted after their end.

Called by the sweep. A pod is only ever deleted by its UID, after a list that is newer than the pod has shown that its
run does not exist; a run that does exist is looked at instead.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from towline import failpoints
from towline.controller import workspace
from towline.controller.cache import Cache, ours
from towline.controller.pods import pod_seen
from towline.controller.ports import Namespaces
from towline.controller.queue import WorkQueue
from towline.controller.run_objects import Key, key_of
from towline.controller.seen import PodSeen
from towline.controller.tell_store import HISTORY_SECONDS
from towline.errors import StoreUnavailable
from towline.events import index, pods, runs
from towline.events.event import RunRef
from towline.events.feed import feed_rest
from towline.events.store import Store
from towline.kube.client import Kube
from towline.kube.errors import Conflict
from towline.kube.kinds import AGENT_RUN, POD

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Reaper:
    kube: Kube
    store: Store
    cache: Cache
    queue: WorkQueue[Key]
    namespaces: Namespaces
    installation: str
    _suspects: set[RunRef] = field(default_factory=set)

    async def orphans(self, listed: Sequence[PodSeen]) -> None:
        """`listed` are all pods with our labels, as they were a moment ago."""
        unknown = [pod for pod in listed if self.cache.key(pod.run_uid) is None]
        for namespace in dict.fromkeys(pod.run_namespace for pod in unknown):
            keys = await self._keys(namespace)
            for pod in unknown:
                if pod.run_namespace != namespace:
                    continue
                if (key := keys.get(pod.run_uid)) is not None:
                    self.queue.add(key)
                elif ours(pod) and not pod.deleting:
                    await self._delete(pod)

    async def workspaces(self) -> None:
        """Claims whose run is gone."""
        listed = [owner async for owner in workspace.owners(self.kube, self.namespaces.sandboxes)]
        for namespace in dict.fromkeys(namespace for namespace, _ in listed):
            there = await self._keys(namespace)
            for place, uid in listed:
                if place == namespace and uid not in there:
                    log.warning("workspace of a deleted run removed", extra={"fields": {"uid": uid}})
                    await workspace.delete(self.kube, self.namespaces.sandboxes, uid)

    async def histories(self) -> None:
        """What the store still has of runs that the cluster has no more; believed at the second sight."""
        try:
            stored = set(await index.members(self.store, self.installation))
        except StoreUnavailable:
            return
        pages = self.kube.pages(AGENT_RUN, metadata_only=True)
        there = {obj["metadata"]["uid"] async for page in pages for obj in page}
        gone = {run for run in stored if run.uid not in there}
        for run in gone & self._suspects:
            await feed_rest(self.store, run)
            await runs.expire(self.store, run, HISTORY_SECONDS)
            await index.remove(self.store, self.installation, run)
            log.info("history of a deleted run let go", extra={"fields": {"run": run.namespace, "uid": run.uid}})
        self._suspects = gone - self._suspects

    async def _keys(self, namespace: str) -> dict[str, Key]:
        """UID → key of every run of a namespace, finished ones too."""
        if not namespace:
            return {}
        pages = self.kube.pages(AGENT_RUN, namespace, metadata_only=True)
        return {obj["metadata"]["uid"]: key_of(obj) async for page in pages for obj in page}

    async def _delete(self, pod: PodSeen) -> None:
        namespace = self.namespaces.harness if pod.harness else self.namespaces.sandboxes
        found = await self.kube.get(POD, namespace, pod.name)
        if found is None or found["metadata"]["uid"] != pod.uid:
            return
        # One that has ended was kept for its log, and goes in good order; one that still works is a surprise.
        ended = pod_seen(found).ended
        level = logging.WARNING if ended is None else logging.INFO
        fields = {"pod": f"{namespace}/{pod.name}", "uid": pod.uid, "was": "alive" if ended is None else str(ended)}
        failpoints.hit("operator.orphan.before")
        try:
            await self.kube.delete(POD, namespace, pod.name, uid=pod.uid)
            await pods.forget_harness(self.store, pod.name)
        except (Conflict, StoreUnavailable) as fault:
            fields["cause"] = str(fault)
        log.log(level, "pod of a deleted run removed", extra={"fields": fields})
