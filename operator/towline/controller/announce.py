"""Posts the Kubernetes Events of a run, for `kubectl describe`; what they say is `story.py`'s.

Told by `reconcile.py` after a status was written. It never holds a reconcile up, posts the same fact once with a count,
and drops what comes too fast.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from towline.clock import utc_now
from towline.controller.seen import RunSeen
from towline.controller.status import seconds
from towline.controller.story import Announcement, announcements
from towline.errors import TowlineError
from towline.kube.client import Kube
from towline.kube.errors import AlreadyExists
from towline.kube.kinds import AGENT_RUN, EVENT
from towline.naming import FIELD_MANAGER

log = logging.getLogger(__name__)

BURST, PER_SECOND = 25.0, 1 / 60
"""For each run: enough for its whole story, then one a minute."""
WAITING = 500
REMEMBERED = 10_000
"""Budgets kept; beyond that all begin anew."""
MAX_NOTE = 1000


class Poster:
    def __init__(self, kube: Kube, *, now: Callable[[], datetime] = utc_now) -> None:
        self._kube, self._now = kube, now
        self._queue: asyncio.Queue[tuple[RunSeen, Announcement]] = asyncio.Queue(WAITING)
        self._budget: dict[str, tuple[float, float]] = {}

    def tell(self, run: RunSeen, old: Mapping[str, Any]) -> None:
        """Never waits: what finds no room is dropped, the status has it anyway."""
        for each in announcements(old, run.status):
            if self._allowed(run.uid) and not self._queue.full():
                self._queue.put_nowait((run, each))
        if run.finished:
            self._budget.pop(run.uid, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            run, what = await self._queue.get()
            try:
                await self._post(run, what)
            except TowlineError as fault:
                # A namespace that is being deleted takes no Events, for example.
                log.debug(
                    "event not posted", extra={"fields": {"run": f"{run.namespace}/{run.name}", "cause": str(fault)}}
                )

    def _allowed(self, uid: str) -> bool:
        now = time.monotonic()
        if len(self._budget) > REMEMBERED:
            self._budget.clear()
        left, at = self._budget.get(uid, (BURST, now))
        left = min(left + (now - at) * PER_SECOND, BURST)
        self._budget[uid] = (max(left - 1, 0.0), now)
        return left >= 1

    async def _post(self, run: RunSeen, what: Announcement) -> None:
        digest = hashlib.sha256(f"{run.uid} {what.reason} {what.note}".encode()).hexdigest()[:16]
        name, now = f"{run.name[:230]}.{digest}", seconds(self._now())
        event = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"namespace": run.namespace, "name": name},
            "involvedObject": {
                "apiVersion": AGENT_RUN.api_version,
                "kind": AGENT_RUN.name,
                "namespace": run.namespace,
                "name": run.name,
                "uid": run.uid,
                "resourceVersion": run.resource_version,
            },
            "reason": what.reason,
            "message": what.note[:MAX_NOTE],
            "type": "Normal" if what.normal else "Warning",
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": "",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._kube.create(event)
        except AlreadyExists:
            if (known := await self._kube.get(EVENT, run.namespace, name)) is not None:
                known |= {"count": int(known.get("count") or 1) + 1, "lastTimestamp": now}
                await self._kube.replace(known)
