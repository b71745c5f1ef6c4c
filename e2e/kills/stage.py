"""What all kills stand on: the installation, clients of API server and store, and gateways or operators that are armed.

It leaves the installation as it found it.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.layout import Cluster
from e2e.installation import HARNESSES, SYSTEM, Installation
from e2e.kills import arming
from e2e.kills.nodes import Process, until_process
from e2e.kills.points import run_name
from e2e.kubectl import Object
from e2e.probe import probing_pod
from e2e.recovery import is_ready
from e2e.runs import Team
from towline.events.notices import Notices
from towline.events.store import Store
from towline.kube import login
from towline.kube.client import Kube
from towline.kube.kinds import LEASE, POD
from towline.naming import EPOCH_LABEL, HARNESS_CONTAINER, ROLE_LABEL, RUN_NAME_LABEL, RUN_NAMESPACE_LABEL

POLL_SECONDS = 0.2
READY_SECONDS = 120.0


@dataclass
class Stage:
    """`async with stage(installation) as it`."""

    installation: Installation
    cluster: Cluster
    team: Team
    kube: Kube
    store: Store
    second_store: Store
    notices: Notices
    ends: list[str] = field(default_factory=list)
    """How the harnesses ended that were only paused."""

    async def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return await asyncio.to_thread(self.installation.kubectl, *arguments, stdin=stdin, check=check)

    async def until(self, what: str, ask: Callable[[], Any], seconds: float = READY_SECONDS) -> Any:
        """Until an asynchronous question is answered by something true; that answer."""
        try:
            async with asyncio.timeout(seconds):
                while not (answer := await ask()):
                    await asyncio.sleep(POLL_SECONDS)
                return answer
        except TimeoutError:
            raise TimeoutError(f"{what}: not so after {seconds:.0f} s") from None

    # -- pods of the system ------------------------------------------------------------------------------------------

    async def pods(self, role: str) -> list[Object]:
        return await self.kube.list(POD, SYSTEM, labels=f"{ROLE_LABEL}={role}")

    async def processes(self, role: str) -> list[Process]:
        """Of every pod of the role."""
        return [await self.process(pod) for pod in await self.pods(role)]

    async def process(self, pod: Object) -> Process:
        async with asyncio.timeout(READY_SECONDS):
            return await until_process(self.cluster.node("trusted"), pod["metadata"]["uid"])

    async def exit_code(self, namespace: str, pod_name: str) -> int | None:
        """How its container ended, once the kubelet says so; None for a pod that is gone."""

        async def told() -> tuple[int | None] | None:
            pod = await self.kube.get(POD, namespace, pod_name)
            if pod is None:
                return (None,)
            states = [each["state"] for each in pod["status"].get("containerStatuses") or ()]
            return next(((state["terminated"]["exitCode"],) for state in states if "terminated" in state), None)

        (code,) = await self.until(f"pod {pod_name} has ended", told)
        return None if code is None else int(code)

    async def until_serving(self, role: str, replicas: int) -> None:
        """Until so many pods of the role are there, and all are ready."""

        async def so() -> bool:
            pods = await self.pods(role)
            return len(pods) == replicas and all(is_ready(pod) for pod in pods)

        await self.until(f"{replicas} of {role} serve", so)

    async def scale(self, role: str, replicas: int) -> None:
        await self.kubectl("scale", f"deployment/towline-{role}", f"--replicas={replicas}", f"--namespace={SYSTEM}")

    async def remove(self, pod: Object) -> None:
        """At once."""
        metadata = pod["metadata"]
        await self.kube.delete(POD, metadata["namespace"], metadata["name"], grace_seconds=0)

    async def renew(self, role: str) -> None:
        """Other pods of the role: the kubelet lets a container wait that dies again and again."""
        before = await self.pods(role)
        for pod in before:
            await self.remove(pod)
        await self.until_serving(role, len(before))

    @asynccontextmanager
    async def armed(self, role: str, failpoint: str) -> AsyncIterator[Object]:
        """A pod of the role, told of its failpoint, when it is ready."""
        text = await self.kubectl("get", "deployment", f"towline-{role}", f"--namespace={SYSTEM}", "--output=json")
        pod = arming.armed_pod(json.loads(text), failpoint, secrets.token_hex(3))
        name = pod["metadata"]["name"]
        made = await self.kube.create(pod)
        try:

            async def ready() -> bool:
                return is_ready(await self.kube.get(POD, SYSTEM, name) or {"status": {}})

            await self.until(f"pod {name} is ready", ready)
            yield made
        finally:
            await self.remove(made)

    # -- gateways ----------------------------------------------------------------------------------------------------

    async def lead_to_armed_gateway(self) -> None:
        """Whoever connects from now on comes to the armed one."""
        await self._select({arming.ARMED_LABEL: "armed"})
        address = (await self.pods_with(arming.ARMED_LABEL))[0]["status"]["podIP"]

        async def so() -> bool:
            return await self._endpoints() == {address}

        await self.until("the gateways' Service leads to the armed one", so)

    async def lead_to_all_gateways(self) -> None:
        """Connections that exist stay where they are."""
        await self._select({arming.ARMED_LABEL: None})

    async def _select(self, labels: dict[str, str | None]) -> None:
        patch = json.dumps({"spec": {"selector": labels}})
        await self.kubectl("patch", "service", "towline-gateway", f"--namespace={SYSTEM}", f"--patch={patch}")

    async def _endpoints(self) -> set[str]:
        text = await self.kubectl(
            "get",
            "endpointslices",
            f"--namespace={SYSTEM}",
            "--selector=kubernetes.io/service-name=towline-gateway",
            "--output=json",
        )
        endpoints = [each for found in json.loads(text)["items"] for each in found.get("endpoints") or ()]
        return {each["addresses"][0] for each in endpoints if each["conditions"].get("ready")}

    async def pods_with(self, label: str) -> list[Object]:
        return await self.kube.list(POD, SYSTEM, labels=label)

    # -- operators ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def armed_operator(self, failpoint: str) -> AsyncIterator[Object]:
        """Leads, while one of the Deployment stands by."""
        async with self.armed("operator", failpoint) as pod:
            try:
                await self.scale("operator", 0)

                async def leads() -> bool:
                    lease = await self.kube.get(LEASE, SYSTEM, "towline-operator")
                    holder = str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
                    return holder.startswith(pod["metadata"]["name"])

                await self.until("the armed operator leads", leads)
            finally:
                await self.scale("operator", 1)
            await self.until_serving("operator", 2)
            yield pod


@asynccontextmanager
async def stage(installation: Installation) -> AsyncIterator[Stage]:
    assert installation.cluster is not None, "processes are looked for on this machine"
    async with AsyncExitStack() as closing:
        kube = Kube(login.client(await login.configuration(installation.kubectl.kubeconfig)), field_manager="kills")
        closing.push_async_callback(kube.aclose)
        store, second = (Store.connect(installation.store_url()) for _ in range(2))
        closing.push_async_callback(store.aclose)
        closing.push_async_callback(second.aclose)
        notices = Notices(store)
        closing.push_async_callback(notices.aclose)
        team = Team(installation, f"{arming.NAME}-{secrets.token_hex(3)}")
        await asyncio.to_thread(team.enter)
        closing.push_async_callback(asyncio.to_thread, team.leave)
        made = Stage(installation, installation.cluster, team, kube, store, second, notices)
        await made.kubectl("apply", "--filename=-", stdin=listed(*arming.policy()))
        closing.push_async_callback(
            made.kubectl, "delete", "--ignore-not-found", "--filename=-", stdin=listed(*arming.policy())
        )
        await made.until("harnesses are armed", lambda: arms(made))
        yield made


async def arms(stage: Stage) -> bool:
    """Whether the API server knows the policy already: it hears of it a moment later."""
    labels = {
        ROLE_LABEL: "harness",
        EPOCH_LABEL: "1",
        RUN_NAMESPACE_LABEL: stage.team.namespace,
        RUN_NAME_LABEL: run_name("harness.turn.after", 1, "probe"),
    }
    pod = probing_pod("trusted", [], labels)
    pod["metadata"]["namespace"] = HARNESSES
    (container,) = pod["spec"]["containers"]
    container["name"] = HARNESS_CONTAINER
    line = ("create", "--dry-run=server", "--filename=-", "--output=json")
    return arming.VARIABLE in await stage.kubectl(*line, stdin=json.dumps(pod), check=False)


def listed(*objects: Object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
