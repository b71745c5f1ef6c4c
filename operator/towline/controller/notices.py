"""Turns the store's notices into keys of the queue: what matters at once, what only moves counters now and then.

Started by `process.py`. A lost notice is healed by the sweep.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from towline.controller.cache import Cache
from towline.controller.queue import WorkQueue
from towline.controller.run_objects import Key
from towline.controller.status import COUNTERS_EVERY
from towline.events.all_notices import Notice

AT_ONCE = frozenset({"want", "cancel", "closed", "lost", "inbox", "waiting"})
SOON_SECONDS = 0.3
"""After a quiet time the first event is looked at this late: it seldom comes alone."""

REMEMBERED = 10_000


@dataclass(kw_only=True)
class Ears:
    notices: AsyncIterator[Notice | None]
    cache: Cache
    queue: WorkQueue[Key]
    heard: int = 0
    _looked: dict[Key, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled."""
        async for notice in self.notices:
            if notice is None:
                self._all()
            else:
                self.heard += 1
                self._one(notice)

    def _all(self) -> None:
        self._looked.clear()
        for key in self.cache.all_keys():
            self.queue.add(key)

    def _one(self, notice: Notice) -> None:
        _, uid, kind = notice
        key = self.cache.key(uid)
        if key is None:
            return
        if kind in AT_ONCE:
            self._looked.pop(key, None)
            self.queue.add(key)
        elif kind == "log":
            now, every = time.monotonic(), COUNTERS_EVERY.total_seconds()
            if len(self._looked) > REMEMBERED:
                self._looked.clear()
            wait = max(SOON_SECONDS, self._looked.get(key, now - every) + every - now)
            if wait == SOON_SECONDS:
                self._looked[key] = now
            self.queue.add_after(key, wait)
