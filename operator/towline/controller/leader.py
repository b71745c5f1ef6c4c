"""Leadership: one operator at a time, by a Lease of our own.

Called by `process.py`. `decide` is pure. Time is this process's monotonic clock: a Lease is expired when it has not
changed for its duration as seen from here, whatever the wall clocks say. A process that loses the Lease must end.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from towline.clock import utc_now
from towline.errors import TowlineError
from towline.kube.client import Kube, Object
from towline.kube.errors import Conflict, NotLeading
from towline.kube.kinds import LEASE

log = logging.getLogger(__name__)

DURATION_SECONDS = 15
"""A holder that has not renewed for so long is taken over."""
DEADLINE_SECONDS = 10.0
"""A holder that could not renew for so long has lost it: earlier than anybody can take over."""
PERIOD_SECONDS = 2.0
SEPARATOR = "_"
"""Between the pod and what makes an identity unique; no name of a pod has it."""

Step = Literal["create", "take", "renew", "wait"]


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease, and for how long it has looked the same from here."""

    holder: str
    duration_seconds: float
    unchanged_seconds: float


def identity_in(pod: str) -> str:
    """Of one process: unique for ever, with each start."""
    return f"{pod or 'operator'}{SEPARATOR}{secrets.token_hex(6)}"


def decide(lease: LeaseSeen | None, me: str, pod: str = "") -> Step:
    """What to do about it. `pod` is the name of ours, if there is one: another holder of the same pod is a process that
    has ended, for the kubelet starts no second one before. Nobody has to wait for its Lease to run out."""
    if lease is None:
        return "create"
    if lease.holder == me:
        return "renew"
    predecessor = bool(pod) and lease.holder.startswith(pod + SEPARATOR)
    if not lease.holder or predecessor or lease.unchanged_seconds > lease.duration_seconds:
        return "take"
    return "wait"


class Elector:
    """`kube` must be free to write: it is how leadership is gained. `pod` is the name of ours; empty outside of one."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        pod: str,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._pod, self._identity = pod, identity_in(pod)
        self._now, self._monotonic = now, monotonic
        self.lease_uid = ""
        """Known once we lead: an id of this installation that no other cluster has."""
        self._version = ""
        self._changed_at = 0.0
        self._leading_until = float("-inf")

    @property
    def leading(self) -> bool:
        return self._monotonic() < self._leading_until

    def check(self) -> None:
        """Before each write: raises NotLeading when another one may be writing by now."""
        if not self.leading:
            raise NotLeading("the lease is not ours any more")

    async def acquire(self) -> None:
        """Returns once this process leads; waits for ever, through every fault of the API server."""
        while not await self._try():  # noqa: ASYNC110 - there is nothing to be notified of
            await asyncio.sleep(PERIOD_SECONDS)
        log.info("leadership gained", extra={"fields": {"identity": self._identity}})

    async def hold(self) -> None:
        """Renews until it cannot: returns when leadership is lost."""
        while self.leading:
            await asyncio.sleep(PERIOD_SECONDS)
            await self._try()
        log.error("leadership lost", extra={"fields": {"identity": self._identity}})

    async def release(self) -> None:
        """Gives the Lease up, so that a standby need not wait for its end. Best effort."""
        if not self.leading:
            return
        self._leading_until = float("-inf")
        try:
            found = await self._kube.get(LEASE, self._namespace, self._name)
            if found is not None and found["spec"].get("holderIdentity") == self._identity:
                found["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._kube.replace(found)
        except TowlineError as fault:
            log.warning("lease not released", extra={"fields": {"cause": str(fault)}})

    async def _try(self) -> bool:
        """One attempt; whether we lead after it."""
        started = self._monotonic()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS / 2):
                held = await self._step()
        except (TowlineError, TimeoutError) as fault:
            log.warning("lease not renewed", extra={"fields": {"cause": f"{type(fault).__name__}: {fault}"}})
            return self.leading
        self._leading_until = started + DEADLINE_SECONDS if held else float("-inf")
        return held

    async def _step(self) -> bool:
        found = await self._kube.get(LEASE, self._namespace, self._name)
        step = decide(self._seen(found), self._identity, self._pod)
        try:
            match step:
                case "wait":
                    return False
                case "create":
                    stored = await self._kube.create(self._lease(None))
                case "take" | "renew":
                    stored = await self._kube.replace(self._lease(found))
        except Conflict:
            return False  # another one was quicker
        self._seen(stored)
        self.lease_uid = stored["metadata"]["uid"]
        return True

    def _seen(self, lease: Object | None) -> LeaseSeen | None:
        if lease is None:
            return None
        now, version = self._monotonic(), lease["metadata"]["resourceVersion"]
        if version != self._version:
            self._version, self._changed_at = version, now
        spec = lease.get("spec") or {}
        duration = float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)
        return LeaseSeen(str(spec.get("holderIdentity") or ""), duration, now - self._changed_at)

    def _lease(self, found: Object | None) -> Object:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata: dict[str, Any] = {"namespace": self._namespace, "name": self._name}
        spec: dict[str, Any] = {"acquireTime": now, "leaseTransitions": 0}
        if found is not None:
            metadata, spec = found["metadata"], dict(found.get("spec") or {})
            if spec.get("holderIdentity") != self._identity:
                spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": spec}
