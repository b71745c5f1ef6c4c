"""One run, brought one step further: look, decide, act, tell. Called by `workers.py` for any key, at any time.

look (cache) → plan → if something is to be done: look (live) → plan → carry out → tell the log → status, if it differs
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from towline import failpoints
from towline.controller.actions import HARMLESS, Action
from towline.controller.cache import Cache
from towline.controller.carry_out import Gone, Hands, wrote_to_store
from towline.controller.observe import Observer
from towline.controller.plan import plan
from towline.controller.run_objects import Key
from towline.controller.seen import Observed, RunSeen
from towline.controller.status import COUNTERS_EVERY, due, phase_to_tell, status_of
from towline.errors import StoreUnavailable
from towline.kube.errors import Conflict

Tell = Callable[[RunSeen, Mapping[str, Any]], None]
"""Called when the status has changed, with the run as it is now and its former status."""


@dataclass(frozen=True, slots=True)
class Looked:
    """When to look again if nothing is heard, None for never; and whether something is to be tried again meanwhile."""

    again: timedelta | None = None
    retry: bool = False


@dataclass(kw_only=True)
class Reconciler:
    observer: Observer
    hands: Hands
    cache: Cache
    tell: Tell
    monotonic: Callable[[], float] = time.monotonic
    _written: dict[Key, float] = field(default_factory=dict)
    """When a status was written last; only spaces the writing of counters."""

    async def reconcile(self, key: Key) -> Looked:
        """Raises errors of our family when it could not be finished: come back later."""
        seen = await self.observer.look(key)
        if seen is None:
            self._written.pop(key, None)
            return Looked()
        made = plan(seen)
        if not seen.live and any(not isinstance(action, HARMLESS) for action in made.actions):
            seen = await self.observer.look(key, live=True)
            if seen is None:
                return Looked()
            failpoints.hit("operator.observed")
            made = plan(seen)
        before = seen.run.status
        done = await self.hands.carry_out(made.actions, seen)
        seen, fault = done.seen, done.fault
        if done.deleted:
            self._forget(key, seen.run)
            return Looked()
        if isinstance(fault, StoreUnavailable):
            seen = replace(seen, store=None)
        elif wrote_to_store(made.actions):
            seen = await self.observer.reread(seen)
        if isinstance(fault, Conflict | Gone):
            raise fault  # what we saw is no longer so: its status would be wrong, too
        seen = await self._tell_log(seen)
        seen, postponed = await self._write(key, seen)
        if seen.run.status != before:
            self.tell(seen.run, before)
        if fault is not None and not isinstance(fault, StoreUnavailable):
            raise fault
        return self._next(key, seen, made.actions, postponed)

    async def _tell_log(self, seen: Observed) -> Observed:
        """A new phase into the log, and from the log into the feed; once told, it is seen to have been told."""
        if seen.store is None:
            return seen
        news = phase_to_tell(seen, status_of(seen))
        if news is None and not seen.store.state.unfed:
            return seen
        try:
            await self.hands.tell_log(seen, news)
        except StoreUnavailable:
            return replace(seen, store=None)
        return await self.observer.reread(seen)

    async def _write(self, key: Key, seen: Observed) -> tuple[Observed, timedelta | None]:
        """The status, if it is due; else when it will be."""
        old, new = seen.run.status, status_of(seen)
        if old == new or (seen.run.deleting_since is not None and not seen.run.finalizers):
            return seen, None
        written = self._written.get(key)
        since = timedelta.max if written is None else timedelta(seconds=self.monotonic() - written)
        if not due(old, new, since):
            return seen, COUNTERS_EVERY - since
        failpoints.hit("operator.status.before")
        seen = await self.hands.write_status(seen, new)
        failpoints.hit("operator.status.after")
        self._written[key] = self.monotonic()
        return seen, None

    def _next(self, key: Key, seen: Observed, tried: Sequence[Action], postponed: timedelta | None) -> Looked:
        after = plan(seen)
        refused = seen.harness_trouble is not None or seen.sandbox_trouble is not None
        # What was done and is due again had no effect: at once it would have none either, for as long as that lasts.
        retry = refused or seen.store is None or any(action in tried for action in after.actions)
        if after.actions and not retry:
            return Looked(timedelta())
        done = seen.run.finished and not seen.harnesses and not seen.sandboxes
        if done or (seen.run.deleting_since is not None and not seen.run.finalizers):
            self._forget(key, seen.run)
        waits = [each for each in (after.look_again, postponed) if each is not None]
        return Looked(min(waits, default=None), retry)

    def _forget(self, key: Key, run: RunSeen) -> None:
        """Done with it; a time to live is kept by the sweep."""
        self.cache.drop_run(key)
        self.observer.forget(run.uid)
        self._written.pop(key, None)
