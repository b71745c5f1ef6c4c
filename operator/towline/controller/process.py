"""One operator process: wires the parts, leads or waits to lead, and ends when it may lead no longer.

Called by `__main__.py`, and by tests that run several in one process. It decides nothing about any run.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from towline import failpoints
from towline.controller.announce import Poster
from towline.controller.cache import Cache
from towline.controller.carry_out import Hands
from towline.controller.handlers import Watches
from towline.controller.health import Health
from towline.controller.leader import Elector
from towline.controller.make_pods import PodMaker
from towline.controller.memory import give_back
from towline.controller.metrics import Metrics
from towline.controller.notices import Ears
from towline.controller.observe import Observer
from towline.controller.policies import Policies
from towline.controller.ports import Manifests, Namespaces
from towline.controller.queue import WorkQueue
from towline.controller.reaper import Reaper
from towline.controller.reconcile import Reconciler
from towline.controller.run_objects import Key
from towline.controller.sweep import UNFINISHED, Sweep
from towline.controller.workers import Workers
from towline.errors import TowlineError
from towline.events.all_notices import all_notices
from towline.events.store import Store
from towline.kube import login
from towline.kube.client import Kube
from towline.kube.kinds import AGENT_RUN, OURS, POD
from towline.naming import RUN_UID_LABEL
from towline.settings import OperatorSettings

log = logging.getLogger(__name__)

STUCK_SECONDS = 300.0
"""A sweep comes round twice a minute; when it has not for this long, the loop is stuck."""
UNREADY_SECONDS = 150.0
STOP_SECONDS = 5.0
STOP_WATCHING_SECONDS = 0.5


@dataclass(kw_only=True)
class Operator:
    """`run` is called once. `stop` may be set at any time."""

    settings: OperatorSettings
    manifests: Manifests
    stop: asyncio.Event
    refresh: Callable[[Kube], Awaitable[None]]
    """See `policies.py`."""
    claim_signals: Callable[[], None] = lambda: None
    health_host: str = "0.0.0.0"  # noqa: S104 - probes and scrapes come from outside the pod
    metrics: Metrics = field(default_factory=Metrics)
    leading: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once this process leads and has looked at everything there is."""
    queue: WorkQueue[Key] = field(init=False)
    cache: Cache = field(default_factory=Cache)
    sweep: Sweep = field(init=False)
    kube: Kube = field(init=False)
    _started: float = 0.0
    health_address: tuple[str, int] = ("", 0)

    async def run(self) -> bool:
        """True after `stop`; False when something ended it, which the log names: the process must end, too."""
        self.queue = WorkQueue()
        async with AsyncExitStack() as closing:
            credentials = await login.configuration(self.settings.kubeconfig)
            # A client of its own: a renewal must not wait behind the requests that are made under the Lease.
            unhindered = Kube(login.client(credentials))
            closing.push_async_callback(unhindered.aclose)
            elector = Elector(
                unhindered,
                namespace=self.settings.system_namespace,
                name=self.settings.lease,
                pod=self.settings.identity,
            )
            self.kube = Kube(login.client(credentials), may_write=elector.check)
            closing.push_async_callback(self.kube.aclose)
            health = Health(metrics=self.metrics, alive=self._wrong, ready=self._unready)
            self.health_address = self.health_host, await health.start(self.health_host, self.settings.health_port)
            closing.push_async_callback(health.stop)
            store = Store.connect(self.settings.redis_url)
            closing.push_async_callback(store.aclose)
            if not await self._until_stop(elector.acquire()):
                return True
            closing.push_async_callback(elector.release)
            lease = asyncio.create_task(elector.hold(), name="lease")
            closing.push_async_callback(_ended, lease)  # what is given back must not be renewed
            failpoints.hit("operator.leading")
            return await self._lead(elector, lease, store, credentials)

    async def _lead(
        self, elector: Elector, lease: asyncio.Task[None], store: Store, credentials: login.Configuration
    ) -> bool:
        settings, kube = self.settings, self.kube
        missing = [kind.name for kind in OURS if not await kube.served(kind)]
        if missing:
            log.error("kinds not installed", extra={"fields": {"kinds": missing, "expected": "the chart's CRDs"}})
            return False
        namespaces = Namespaces(settings.system_namespace, settings.harness_namespace, settings.sandbox_namespace)
        policies = Policies(
            kube=kube, wanted=self.manifests.network_policies(), refresh=self.refresh, restored=self._all
        )
        poster = Poster(kube)
        observer = Observer(
            kube=kube,
            store=store,
            cache=self.cache,
            namespaces=namespaces,
            finished_pod_retention=timedelta(seconds=settings.finished_pod_seconds),
            policies_in_force=lambda: policies.in_force,
        )
        pod_maker = PodMaker(kube=kube, store=store, cache=self.cache, manifests=self.manifests, namespaces=namespaces)
        hands = Hands(
            kube=kube,
            store=store,
            cache=self.cache,
            pod_maker=pod_maker,
            namespaces=namespaces,
            installation=elector.lease_uid,
        )
        reconciler = Reconciler(observer=observer, hands=hands, cache=self.cache, tell=poster.tell)
        reaper = Reaper(
            kube=kube,
            store=store,
            cache=self.cache,
            queue=self.queue,
            namespaces=namespaces,
            installation=elector.lease_uid,
        )
        self.sweep = Sweep(
            kube=kube,
            store=store,
            cache=self.cache,
            queue=self.queue,
            namespaces=namespaces,
            policies=policies,
            reaper=reaper,
            every_seconds=settings.sweep_seconds,
        )
        watches = Watches(
            cache=self.cache,
            queue=self.queue,
            policies=policies,
            namespaces=namespaces,
            credentials=credentials,
            claim_signals=self.claim_signals,
        )
        ears = Ears(notices=all_notices(store), cache=self.cache, queue=self.queue)
        self._measure(ears)
        if not await self._until_stop(self._fill(namespaces), lease):
            return await self._together(lease, {})
        policies.look()
        parts = {
            "watches": watches.run(),
            "workers": Workers(queue=self.queue, reconciler=reconciler, metrics=self.metrics).run(),
            "sweep": self.sweep.run(),
            "notices": ears.run(),
            "events": poster.run(),
            "policies": policies.run(),
        }
        self.leading.set()
        return await self._together(lease, parts)

    async def _fill(self, namespaces: Namespaces) -> None:
        """What there is, before anything acts: else every pod that a watch has not told of yet would count as lost."""
        while True:
            try:
                for namespace in (namespaces.harness, namespaces.sandboxes):
                    async for pods in self.kube.pages(POD, namespace, labels=RUN_UID_LABEL):
                        for pod in pods:
                            self.cache.put_pod(pod)
                async for runs in self.kube.pages(AGENT_RUN, fields=UNFINISHED):
                    for run in runs:
                        self.cache.put_run(run)
                break
            except TowlineError as fault:
                log.warning("first look failed", extra={"fields": {"cause": str(fault)}})
                await asyncio.sleep(1)
        give_back()
        self._all()
        log.info("first look done", extra={"fields": {"runs": len(self.cache)}})

    def _all(self) -> None:
        for key in self.cache.all_keys():
            self.queue.add(key)

    async def _together(self, lease: asyncio.Task[None], parts: dict[str, Coroutine[Any, Any, None]]) -> bool:
        """Runs all until the first one ends, which none should, or `stop`."""
        tasks: dict[asyncio.Task[Any], str] = {lease: "lease"}
        tasks |= {asyncio.create_task(part, name=name): name for name, part in parts.items()}
        stopping = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task, name in tasks.items():
                if task in done:
                    fault = task.exception()
                    log.error("part ended", extra={"fields": {"part": name, "cause": repr(fault)}}, exc_info=fault)
            return done == {stopping}
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            # Kopf takes its time, and writes nothing: the lease is given back without waiting for it.
            await asyncio.wait([task for task, name in tasks.items() if name != "watches"], timeout=STOP_SECONDS)
            await asyncio.wait(list(tasks), timeout=STOP_WATCHING_SECONDS)

    async def _until_stop(self, work: Coroutine[Any, Any, None], *needed: asyncio.Task[None]) -> bool:
        """Whether `work` ended before `stop` was set, and before anything ended that is needed for it."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait([working, stopping, *needed], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            await _ended(working, stopping)

    # -- health ------------------------------------------------------------------------------------------------------

    def _wrong(self) -> str:
        if not self.leading.is_set():
            return ""
        if self.sweep.stalled:
            return "a watch has stalled"
        age = time.monotonic() - self.sweep.heartbeat
        return f"no sweep for {age:.0f} s" if age > STUCK_SECONDS + self.settings.sweep_seconds else ""

    def _unready(self) -> str:
        """A standby is ready: it could lead at once."""
        if not self.leading.is_set():
            return ""
        age = time.monotonic() - max(self.sweep.succeeded, self._started)
        return f"the API server has not answered a sweep for {age:.0f} s" if age > UNREADY_SECONDS else ""

    def _measure(self, ears: Ears) -> None:
        self._started = time.monotonic()
        gauge = self.metrics.gauge
        gauge("towline_leader", "1 while this process leads.", lambda: 1.0)
        gauge("towline_runs", "Unfinished runs that are known.", lambda: float(len(self.cache)))
        gauge("towline_queue_length", "Runs that wait for a look.", lambda: float(len(self.queue)))
        gauge("towline_api_writes_total", "Writing requests to the API server.", lambda: float(self.kube.writes))
        gauge("towline_notices_total", "Notices of the event store.", lambda: float(ears.heard))
        gauge("towline_sweep_age_seconds", "Since the last sweep.", lambda: time.monotonic() - self.sweep.heartbeat)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancels them and waits until they are done."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
