"""The workers: take a key, bring its run one step further, put the key back for when it is due again.

Started by `process.py`. The edge where any error of a single run ends: logged, and the run tried again later.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from towline.controller.metrics import Metrics
from towline.controller.queue import WorkQueue
from towline.controller.reconcile import Reconciler
from towline.controller.run_objects import Key
from towline.errors import StoreUnavailable, TowlineError
from towline.kube.errors import Conflict, NotLeading, TooMany, Unreachable

log = logging.getLogger(__name__)

WORKERS = 10
RECONCILE_SECONDS = 120.0
"""Far beyond what a look takes; a request is bounded by less. What takes longer is stuck, and given up for now."""


@dataclass(kw_only=True)
class Workers:
    queue: WorkQueue[Key]
    reconciler: Reconciler
    metrics: Metrics

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(self._work(), name=f"worker-{number}")

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self.one(key)
            finally:
                self.queue.done(key)

    async def one(self, key: Key) -> None:
        """One look at one run; what it says about the next look goes into the queue."""
        started = time.monotonic()
        outcome = "done"
        try:
            async with asyncio.timeout(RECONCILE_SECONDS):
                looked = await self.reconciler.reconcile(key)
        except TooMany as fault:
            outcome = "throttled"
            self.queue.add_after(key, fault.seconds)
        except Conflict:
            outcome = "conflict"
            self.queue.retry(key)
        except (Unreachable, StoreUnavailable, NotLeading, TimeoutError) as fault:
            outcome = "unreachable"
            self._come_back(key, fault)
        except TowlineError as fault:
            outcome = "fault"
            self._come_back(key, fault)
        except Exception:
            outcome = "crash"
            self.queue.retry(key)
            log.exception("reconcile crashed", extra={"fields": {"run": "/".join(key)}})
        else:
            if looked.retry:
                self.queue.retry(key)
            else:
                self.queue.forget(key)
            if looked.again is not None:
                self.queue.add_after(key, looked.again.total_seconds())
        self.metrics.reconciled(outcome, time.monotonic() - started)

    def _come_back(self, key: Key, fault: Exception) -> None:
        delay = self.queue.retry(key)
        fields = {"run": "/".join(key), "cause": f"{type(fault).__name__}: {fault}", "delay_seconds": round(delay, 2)}
        log.warning("reconcile postponed", extra={"fields": fields})
