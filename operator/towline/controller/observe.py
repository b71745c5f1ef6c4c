"""One look at a run: from the cache, or live from the API server; and in both cases at the event store.

Called by `reconcile.py`. It decides nothing; what it cannot see it leaves out, as `seen.py` says. For how long
something has been seen is the only thing it remembers, and only delays follow from that.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.controller.cache import Cache, ours
from towline.controller.pods import pod_seen
from towline.controller.ports import Namespaces
from towline.controller.references import Missing, snapshot_of
from towline.controller.run_objects import Key
from towline.controller.seen import Facts, Observed, PodSeen, RunSeen
from towline.errors import StoreUnavailable
from towline.events.glance import Glance, glance
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.kinds import AGENT_RUN, POD
from towline.kube.pod_status import Trouble
from towline.naming import RUN_UID_LABEL

STORE_PAUSE_SECONDS = 1.0
"""A store that did not answer is not asked again for this long: a thousand runs must not each wait for it."""

_UNREADABLE = Trouble("InvalidSpec", "the stored snapshot is of a version that this operator does not know")


@dataclass(kw_only=True)
class Observer:
    kube: Kube
    store: Store
    cache: Cache
    namespaces: Namespaces
    finished_pod_retention: timedelta
    policies_in_force: Callable[[], bool]
    now: Callable[[], datetime] = utc_now
    _away_until: float = 0.0
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    async def look(self, key: Key, *, live: bool = False) -> Observed | None:
        """None when there is no such run. Raises Unreachable or TooMany when it would have to ask the API server."""
        entry = self.cache.entry(key)
        run = entry.run if entry is not None else None
        obj: Object | None = None
        if live or entry is None or run is None or entry.stale or _undecided(run, entry.facts):
            obj = await self._fetch(key)
            entry = self.cache.entry(key)
            if obj is None or entry is None:
                return None
            run = entry.run
        seen = Observed(
            run=run,
            now=self.now(),
            live=obj is not None,
            store=await self._glance(run, entry.harnesses.values(), entry.facts is None),
            harnesses=tuple(entry.harnesses.values()),
            sandboxes=tuple(entry.sandboxes.values()),
            facts=entry.facts,
            policies_in_force=self.policies_in_force(),
            finished_pod_retention=self.finished_pod_retention,
        )
        if seen.store is not None:
            entry.state = seen.store.state
            if seen.facts is None and seen.store.spec is not None:
                entry.facts = facts_of(seen.store.spec)
                seen = replace(seen, facts=entry.facts, missing=None if entry.facts else _UNREADABLE)
        stored = seen.store is not None and seen.store.spec is not None
        if obj is not None and not stored and _undecided(seen.run, seen.facts):
            seen = await self._propose(seen, obj)
        return self._timed(seen)

    async def reread(self, seen: Observed) -> Observed:
        """The same look after we wrote to the store."""
        entry = self.cache.entry((seen.run.namespace, seen.run.name))
        told = await self._glance(seen.run, seen.harnesses, seen.facts is None)
        facts = seen.facts or (facts_of(told.spec) if told is not None and told.spec is not None else None)
        if entry is not None:
            entry.facts = facts
            entry.state = told.state if told is not None else None
        return self._timed(replace(seen, store=told, facts=facts))

    def forget(self, uid: str) -> None:
        """Nothing more will be asked about this run."""
        for what in ("cancel", "absent"):
            self._since.pop((uid, what), None)

    async def _fetch(self, key: Key) -> Object | None:
        """The run and its pods from the API server, into the cache; None when the run is gone."""
        obj = await self.kube.get(AGENT_RUN, *key)
        entry = self.cache.entry(key)
        if entry is not None and (obj is None or obj["metadata"]["uid"] != entry.head.uid):
            self.forget(entry.head.uid)
            self.cache.drop_run(key)
        if obj is None:
            return None
        self.cache.put_run(obj)
        entry = self.cache.entry(key)
        if entry is not None and entry.run.epoch == 0 and not entry.harnesses and not entry.sandboxes:
            entry.stale = False
            return obj  # nothing was granted yet, so there are no pods to list
        labels = f"{RUN_UID_LABEL}={obj['metadata']['uid']}"
        harnesses, sandboxes = await asyncio.gather(
            self.kube.list(POD, self.namespaces.harness, labels=labels),
            self.kube.list(POD, self.namespaces.sandboxes, labels=labels),
        )
        self.cache.set_pods(key, _pods(harnesses, harness=True), _pods(sandboxes, harness=False))
        entry = self.cache.entry(key)
        if entry is not None:
            entry.stale = False
        return obj

    async def _glance(self, run: RunSeen, harnesses: Iterable[PodSeen], with_spec: bool) -> Glance | None:
        if time.monotonic() < self._away_until:
            return None
        try:
            acting = next((pod.name for pod in harnesses if pod.alive and pod.number == run.epoch), "")
            return await glance(self.store, run.ref, harness=acting, with_spec=with_spec)
        except StoreUnavailable:
            self._away_until = time.monotonic() + STORE_PAUSE_SECONDS
            return None

    async def _propose(self, seen: Observed, obj: Object) -> Observed:
        try:
            return replace(seen, proposal=await snapshot_of(self.kube, self.store, self.namespaces, obj))
        except StoreUnavailable:
            return replace(seen, store=None)
        except Missing as missing:
            return replace(seen, missing=missing.trouble)

    def _timed(self, seen: Observed) -> Observed:
        cancelling = seen.run.cancel or (seen.store is not None and seen.store.state.cancel is not None)
        return replace(
            seen,
            since_cancel=self._age(seen.run.uid, "cancel", cancelling),
            since_absent=self._age(seen.run.uid, "absent", seen.history_lost),
        )

    def _age(self, uid: str, what: str, holds: bool) -> timedelta:
        if not holds:
            self._since.pop((uid, what), None)
            return timedelta()
        now = time.monotonic()
        return timedelta(seconds=now - self._since.setdefault((uid, what), now))


def _undecided(run: RunSeen, facts: Facts | None) -> bool:
    """Whether the run is still to be accepted: for that its whole spec is needed, which no cache keeps."""
    return facts is None and "resolved" not in run.status and run.deleting_since is None and not run.finished


def _pods(objects: Sequence[Object], *, harness: bool) -> list[PodSeen]:
    return [pod for pod in map(pod_seen, objects) if ours(pod) and pod.harness == harness]


def facts_of(spec: bytes) -> Facts | None:
    """What matters of a stored snapshot; None for one of a version that we do not know: a newer operator stored it."""
    try:
        stored = Snapshot.from_json(spec)
    except ValidationError:
        return None
    price, keeps, volume = stored.model.price, stored.sandbox.keeps_workspace, stored.sandbox.volume
    return Facts(
        digest="sha256:" + hashlib.sha256(spec).hexdigest(),
        backoff_limit=stored.backoff_limit,
        active_deadline_seconds=stored.active_deadline_seconds,
        start_timeout_seconds=stored.sandbox.start_timeout_seconds,
        eager=stored.sandbox.policy == "Eager",
        sandbox_provider=stored.sandbox.provider,
        keeps_workspace=keeps,
        storage_class=volume.storage_class_name if volume is not None else "",
        lacks_volume=stored.sandbox.class_name if stored.sandbox.retain == "Suspend" and not keeps else "",
        finish_after_seconds=stored.idle_policy.finish_after_seconds,
        has_price=any((price.input_micro_usd, price.output_micro_usd, price.cached_input_micro_usd)),
    )
