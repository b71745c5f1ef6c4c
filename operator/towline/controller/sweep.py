"""The net under the watches: what the API server has, compared with what they told, twice a minute.

Started by `process.py`. It enqueues what differs and drops what is gone; acting is left to the reconcile. A watch that
has not told of a change by the next sweep is dead, whatever it thinks of itself: then this process must end.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from towline.clock import moment, utc_now
from towline.controller.cache import Cache, ours
from towline.controller.memory import give_back
from towline.controller.pods import pod_seen
from towline.controller.policies import Policies
from towline.controller.ports import Namespaces
from towline.controller.queue import WorkQueue
from towline.controller.reaper import Reaper
from towline.controller.run_objects import Key, key_of
from towline.controller.seen import PodSeen
from towline.errors import StoreUnavailable, TowlineError
from towline.events.event import RunRef
from towline.events.glance import open_logs, states
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.kinds import AGENT_RUN, POD
from towline.naming import DELETE_AFTER_ANNOTATION, FINALIZER, RUN_UID_LABEL, SETTLED_ANNOTATION

log = logging.getLogger(__name__)

STALL_SECONDS = 30.0
"""How much later than a sweep a watch may tell of the same change. The next sweep looks whether it did."""
FINISHED_EVERY = 10
"""Sweeps of the unfinished runs for each one of the finished ones, of which there may be a hundred thousand."""

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Cancelled"


@dataclass(kw_only=True)
class Sweep:
    kube: Kube
    store: Store
    cache: Cache
    queue: WorkQueue[Key]
    namespaces: Namespaces
    policies: Policies
    reaper: Reaper
    every_seconds: float
    stall_seconds: float = STALL_SECONDS
    now: Callable[[], datetime] = utc_now
    stalled: bool = False
    """A watch is dead."""
    _behind: dict[str, tuple[int, float]] = field(default_factory=dict)
    """UID → the version that no watch had told, and when that was first seen."""
    heartbeat: float = field(default_factory=time.monotonic)
    """When this loop last came round, whatever the API server answered."""
    succeeded: float = float("-inf")
    """When the API server last answered all of it."""

    async def run(self) -> None:
        """Returns when a watch has stalled; otherwise runs until cancelled."""
        number = 0
        while not self.stalled:
            await asyncio.sleep(self.every_seconds)
            number += 1
            self.heartbeat = time.monotonic()
            await self._guarded(self.unfinished)
            await self._guarded(self.states)
            await self._guarded(self.policies.ensure)
            give_back()
            if (number - 1) % FINISHED_EVERY == 0:  # the first one soon: who led before may have died over an end
                await self._guarded(self.finished)
                await self._guarded(self.reaper.histories)
                await self._guarded(self.reaper.workspaces)

    async def unfinished(self) -> None:
        """Runs and pods that the API server has in another version than the watches told."""
        pods = await self._pods()
        runs = await self._runs()
        self.succeeded = time.monotonic()
        await self._heal_runs(runs)
        self._heal_pods(pods)
        self._check_watches(dict(runs.values()) | {pod.uid: pod.version for pod in pods})
        await self.reaper.orphans(pods)

    async def states(self) -> None:
        """Runs whose state in the store is not the one that was last looked at: a notice was lost."""
        entries = [entry for entry in self.cache.entries() if not entry.finished]
        try:
            found = await states(self.store, [entry.head.ref for entry in entries])
        except StoreUnavailable:
            return  # each run says so in its own status
        for entry, state in zip(entries, found, strict=True):
            if entry.state is not None and state != entry.state:
                self.queue.add(entry.key)

    async def finished(self) -> None:
        """Finished runs, which no watch shows: not settled yet, changed since, or at the end of their time to live; and
        those whose end the store has lost."""
        store_answers = True
        async for page in self.kube.pages(AGENT_RUN, metadata_only=True):
            unseen = [obj for obj in page if self.cache.key(obj["metadata"]["uid"]) is None]
            for obj in unseen:
                self._finished(key_of(obj), obj["metadata"])
            store_answers = store_answers and await self._without_end(unseen)

    def _finished(self, key: Key, metadata: Mapping[str, Any]) -> None:
        annotations = metadata.get("annotations") or {}
        due = moment(annotations.get(DELETE_AFTER_ANNOTATION))
        settled = annotations.get(SETTLED_ANNOTATION) == str(metadata.get("generation"))
        if not settled or FINALIZER in (metadata.get("finalizers") or ()):
            self.queue.add(key)
        elif due is not None:
            wait = (due - self.now()).total_seconds()
            if wait < self.every_seconds * FINISHED_EVERY:
                self.queue.add_after(key, wait)

    async def _without_end(self, finished: Sequence[Object]) -> bool:
        """Enqueues those of the runs whose log is open; False when the store does not answer."""
        found = (obj["metadata"] for obj in finished)
        runs = [RunRef(each["namespace"], each["uid"], each["name"]) for each in found]
        try:
            open_ones = await open_logs(self.store, runs)
        except StoreUnavailable:
            return False
        for run, is_open in zip(runs, open_ones, strict=True):
            if is_open:
                self.queue.add((run.namespace, run.name))
        return True

    def _check_watches(self, versions: Mapping[str, int]) -> None:
        """Notes what the watches have not told yet; what they still have not told after a while, they never will."""
        now = time.monotonic()
        behind = {uid: version for uid, version in versions.items() if self.cache.watched(uid) < version}
        known = {uid: (version, at) for uid, (version, at) in self._behind.items() if self.cache.watched(uid) < version}
        late = [uid for uid in behind if uid in known and now - known[uid][1] >= self.stall_seconds]
        self._behind = {uid: known.get(uid, (version, now)) for uid, version in behind.items()}
        if late:
            self.stalled = True
            log.error("watch stalled", extra={"fields": {"objects": len(late)}})

    async def _runs(self) -> dict[Key, tuple[str, int]]:
        """Key → UID and version of each unfinished run."""
        found: dict[Key, tuple[str, int]] = {}
        async for page in self.kube.pages(AGENT_RUN, fields=UNFINISHED, metadata_only=True):
            found |= {key_of(obj): (obj["metadata"]["uid"], int(obj["metadata"]["resourceVersion"])) for obj in page}
        return found

    async def _pods(self) -> list[PodSeen]:
        """What the metadata say of each pod with our labels."""
        found: list[PodSeen] = []
        for namespace in (self.namespaces.harness, self.namespaces.sandboxes):
            async for page in self.kube.pages(POD, namespace, labels=RUN_UID_LABEL, metadata_only=True):
                found += map(pod_seen, page)
        return found

    async def _heal_runs(self, listed: Mapping[Key, tuple[str, int]]) -> None:
        for key, (uid, version) in listed.items():
            entry = self.cache.entry(key)
            if entry is None or entry.head.uid != uid or entry.version < version:
                self._look_live(key)
        for key in self.cache.all_keys():
            entry = self.cache.entry(key)
            if entry is None or key in listed:
                continue
            if not entry.finished:
                self._look_live(key)
            elif not await self._exists(key, entry.head.uid):
                self.cache.drop_run(key)  # deleted while its pod was kept; the reaper takes that

    async def _exists(self, key: Key, uid: str) -> bool:
        found = await self.kube.get(AGENT_RUN, *key, metadata_only=True)
        return found is not None and bool(found["metadata"]["uid"] == uid)

    def _heal_pods(self, pods: Sequence[PodSeen]) -> None:
        listed: dict[str, dict[str, int]] = {}
        for pod in pods:
            if ours(pod):
                listed.setdefault(pod.run_uid, {})[pod.uid] = pod.version
        for entry in self.cache.entries():
            known = {pod.uid: pod.version for pod in (*entry.harnesses.values(), *entry.sandboxes.values())}
            there = listed.get(entry.head.uid, {})
            if known.keys() != there.keys() or any(version > known[uid] for uid, version in there.items()):
                self._look_live(entry.key)

    def _look_live(self, key: Key) -> None:
        self.cache.lost_sight(key)
        self.queue.add(key)

    async def _guarded(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except TowlineError as fault:
            log.warning("sweep interrupted", extra={"fields": {"part": part.__name__, "cause": str(fault)}})
