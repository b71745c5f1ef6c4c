"""Sandboxes as pods of the cluster: the `pod` SandboxProvider.

The contract of `provider.py` over the API server, for the conformance suite and for whoever waits for a sandbox. The
controller does not wait: it takes the same manifests, and looks at pods level by level. A pod that bears our name and
is not ours is never touched.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from towline.errors import SandboxFailed
from towline.kube.client import Kube, Object
from towline.kube.errors import AlreadyExists, Conflict, Refused
from towline.kube.kinds import POD
from towline.naming import RUN_UID_LABEL, SANDBOX_CONTAINER
from towline.sandbox.guest import Answer, Guest
from towline.sandbox.pod_state import state_of
from towline.sandbox.provider import Loss, SandboxHandle, SandboxRequest

POLL_SECONDS = 0.2
"""Between two looks at a pod. Nothing here watches: there are few waits, and they are short."""

START_SECONDS = 120.0
GONE_SECONDS = 60.0

Build = Callable[[SandboxRequest], Object]
"""The manifest of a request; equal requests give equal manifests. A request's volume is the name of a claim."""


class PodSandbox:
    """All pods are in `namespace`. Beside SandboxFailed, kube's Unreachable and TooMany may leave every method."""

    def __init__(self, kube: Kube, namespace: str, build: Build, *, start_seconds: float = START_SECONDS) -> None:
        self._kube, self._namespace, self._build = kube, namespace, build
        self._start_seconds = start_seconds
        self._requests: dict[str, SandboxRequest] = {}
        self._ended_by_us: dict[str, Loss] = {}

    async def create(self, request: SandboxRequest) -> SandboxHandle:
        known = self._requests.setdefault(request.name, request)
        if known != request:
            raise SandboxFailed("NameTaken", f"sandbox {request.name} exists and was requested differently")
        return await self._bring_up(request)

    async def endpoint(self, name: str) -> str:
        state = state_of(await self._get(name))
        if not state.endpoint:
            raise SandboxFailed("Unknown", f"sandbox {name} is not alive")
        return state.endpoint

    async def suspend(self, name: str) -> None:
        if name not in self._requests:
            raise _unknown(name)
        await self._end(name, Loss("Suspended", f"sandbox {name} was suspended"))

    async def resume(self, name: str) -> SandboxHandle:
        request = self._requests.get(name)
        if request is None:
            raise _unknown(name)
        return await self._bring_up(request)

    async def destroy(self, name: str) -> None:
        await self._end(name, Loss("Destroyed", f"sandbox {name} was destroyed"))
        self._requests.pop(name, None)

    async def wait_lost(self, name: str) -> Loss:
        uid = ""
        while True:
            pod = await self._get(name)
            lost = state_of(pod).lost
            if pod is not None and uid and pod["metadata"]["uid"] != uid:
                lost = Loss("Deleted", "another pod has taken its place")
            if lost is not None:
                return self._ended_by_us.get(name) or lost
            assert pod is not None, "one that is not there is lost"
            uid = pod["metadata"]["uid"]
            await asyncio.sleep(POLL_SECONDS)

    async def _bring_up(self, request: SandboxRequest) -> SandboxHandle:
        self._ended_by_us.pop(request.name, None)
        trouble = Loss("StartFailed", "the tool server did not answer")
        try:
            async with asyncio.timeout(self._start_seconds):
                pod: Object | None = await self._ensure(request)
                while True:
                    state = state_of(pod)
                    if state.lost is not None:
                        raise SandboxFailed(state.lost.reason, state.lost.message)
                    if state.endpoint and await answers_hello(state.endpoint):
                        return SandboxHandle(request.name, state.endpoint)
                    trouble = state.trouble or trouble
                    await asyncio.sleep(POLL_SECONDS)
                    pod = await self._get(request.name)
        except TimeoutError:
            await self._end(request.name, trouble)
            raise SandboxFailed(trouble.reason, f"not up within {self._start_seconds:g} s: {trouble.message}") from None
        except SandboxFailed as fault:
            if fault.reason != "NameTaken":
                await self._end(request.name, Loss(fault.reason, fault.message))
            raise

    async def _ensure(self, request: SandboxRequest) -> Object:
        """The pod of the request, made if there is none. One that died before is removed first."""
        wanted = self._build(request)
        while True:
            found = await self._get(request.name)
            if found is not None and not same(found, wanted):
                raise SandboxFailed("NameTaken", f"pod {self._namespace}/{request.name} exists and is not this sandbox")
            if found is not None and state_of(found).lost is None:
                return found
            if found is not None:
                await self._remove(found)
            try:
                return await self._kube.create(wanted)
            except AlreadyExists:
                continue  # another call was faster; look at what it made
            except Refused as refusal:
                raise SandboxFailed("QuotaExceeded" if refusal.quota else "PodRefused", refusal.message) from refusal

    async def _end(self, name: str, why: Loss) -> None:
        found = await self._get(name)
        request = self._requests.get(name)
        if found is None or (request is not None and not same(found, self._build(request))):
            return
        if state_of(found).lost is None:
            self._ended_by_us[name] = why
        await self._remove(found)

    async def _remove(self, pod: Object) -> None:
        """Delete exactly this pod, and wait until it is gone: its processes with it, says the kubelet."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            await self._kube.delete(POD, self._namespace, name, uid=uid)
        except Conflict:
            return
        try:
            async with asyncio.timeout(GONE_SECONDS):
                while True:
                    left = await self._get(name)
                    if left is None or left["metadata"]["uid"] != uid:
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise SandboxFailed("NodeLost", f"pod {name} does not go away; is its node alive?") from None

    async def _get(self, name: str) -> Object | None:
        return await self._kube.get(POD, self._namespace, name)


def same(found: Object, wanted: Object) -> bool:
    """Whether the pod is the one that we would make: of the same run, and holding the same key."""
    labels = found["metadata"].get("labels") or {}
    run = wanted["metadata"]["labels"][RUN_UID_LABEL]
    return bool(labels.get(RUN_UID_LABEL) == run and _key(found) == _key(wanted))


def _key(pod: Object) -> Any:
    for container in pod["spec"]["containers"]:
        if container["name"] == SANDBOX_CONTAINER:
            return next((each.get("value") for each in container["env"] if each["name"] == "TOWLINE_SANDBOX_KEY"), None)
    return None


def _unknown(name: str) -> SandboxFailed:
    return SandboxFailed("Unknown", f"there is no sandbox {name}")


async def answers_hello(endpoint: str) -> bool:
    """Whether the tool server says hello to anybody: then it has also proved its network, which it does first."""
    guest = Guest(endpoint, secrets.token_hex(16))
    try:
        await guest.hello()
    except ValueError:
        return True  # it said hello, and of course not with the key that we made up
    except (Answer, OSError, TimeoutError, EOFError):
        return False
    finally:
        guest.close()
    return True
