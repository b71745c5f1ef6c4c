"""What the control-plane tests stand on: an API server with the kinds, a store, operators, and pods that are played."""

import asyncio
import secrets
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.control_plane.played import BOUND, Played
from towline.api.common import SecretRef
from towline.api.snapshot import Snapshot
from towline.controller.process import Operator
from towline.events.event import RunRef
from towline.events.store import Store
from towline.kube import login
from towline.kube.client import Kube, Object
from towline.kube.kinds import AGENT_RUN, AGENT_TEMPLATE, MODEL_PROVIDER, OURS, SANDBOX_CLASS
from towline.manifests.workspace_claim import workspace_claim
from towline.naming import (
    EPOCH_LABEL,
    GENERATION_LABEL,
    ROLE_LABEL,
    RUN_NAMESPACE_LABEL,
    RUN_UID_LABEL,
    harness_pod_name,
    sandbox_name,
)
from towline.settings import OperatorSettings

CRDS = Path(__file__).parents[2] / "crds"
API = "towline.dev/v1alpha1"


@dataclass(frozen=True)
class ControlPlane:
    """A running one: how to reach it, and how to take its API server away for a while."""

    name: str
    kubeconfig: Path
    bin: Path

    @property
    def kubectl(self) -> Path:
        """The one that was built with it."""
        return self.bin / "kubectl"


class OwnStore:
    """An event store whose comings and goings are the test's."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.url = f"unix://{folder}/own.sock"
        self._data = folder / "appendonlydir"
        self._command = [binary, "--port", "0", "--unixsocket", f"{folder}/own.sock", "--dir", str(folder)]
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._server = subprocess.Popen([*self._command, *options], stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(10)
            self._server = None

    def start_empty(self) -> None:
        """As a pod without a volume does."""
        self.stop()
        shutil.rmtree(self._data)
        self.start()


@dataclass(frozen=True)
class PlainManifests:
    """The least that names and labels demand."""

    harness: str
    sandboxes: str
    policies: Sequence[Object] = ()

    def harness_pod(self, run: RunRef, snapshot: Snapshot, epoch: int, secret: SecretRef | None) -> Object:
        return self._pod(
            self.harness, harness_pod_name(run.uid, epoch), run, {ROLE_LABEL: "harness", EPOCH_LABEL: str(epoch)}
        )

    def sandbox_pod(self, run: RunRef, snapshot: Snapshot, generation: int) -> Object:
        labels = {ROLE_LABEL: "sandbox", GENERATION_LABEL: str(generation)}
        pod = self._pod(self.sandboxes, sandbox_name(run.uid, generation), run, labels)
        if (claim := self.workspace_claim(run, snapshot)) is not None:
            source = {"claimName": claim["metadata"]["name"]}
            pod["spec"]["volumes"] = [{"name": "sandbox", "persistentVolumeClaim": source}]
        return pod

    def workspace_claim(self, run: RunRef, snapshot: Snapshot) -> Object | None:
        return workspace_claim(run, snapshot, self.sandboxes)

    def network_policies(self) -> Sequence[Object]:
        return self.policies

    def _pod(self, namespace: str, name: str, run: RunRef, labels: dict[str, str]) -> Object:
        role = labels[ROLE_LABEL]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": namespace,
                "name": name,
                "labels": labels | {RUN_UID_LABEL: run.uid, RUN_NAMESPACE_LABEL: run.namespace},
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [{"name": role, "image": "localhost/none:1"}],
                "terminationGracePeriodSeconds": 1,
            },
        }


@dataclass
class Stage:
    kubeconfig: Path
    redis_url: str
    tag: str
    kube: Kube
    store: Store
    control_plane: "ControlPlane"
    operators: list[tuple[Operator, asyncio.Task[bool]]] = field(default_factory=list)
    policies: Sequence[Object] = ()

    # -- setting up --------------------------------------------------------------------------------------------------

    @classmethod
    async def enter(cls, control_plane: "ControlPlane", redis_url: str) -> "Stage":
        kubeconfig = control_plane.kubeconfig
        kube = Kube(login.client(await login.configuration(kubeconfig)), field_manager="test")
        made = cls(kubeconfig, redis_url, secrets.token_hex(3), kube, Store.connect(redis_url), control_plane)
        await made.install_kinds()
        for namespace in (made.namespace, made.harness, made.sandboxes, made.system):
            await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            await made.service_account(namespace)
        await made.apply(AGENT_TEMPLATE.name, "default", {"tools": ["exec"]}, namespace=made.system)
        steps = [{"text": "hello"}]
        await made.apply(MODEL_PROVIDER.name, "default", {"api": "Scripted", "scripted": {"steps": steps}})
        await made.apply(SANDBOX_CLASS.name, "default", {"startTimeoutSeconds": 60})
        return made

    async def install_kinds(self) -> None:
        for path in sorted(CRDS.glob("*.yaml")):
            await self.kube.apply(yaml.safe_load(path.read_text()))
        for kind in OURS:
            await self.until(lambda kind=kind: self.kube.served(kind), f"{kind.name} is served")

    async def service_account(self, namespace: str) -> None:
        """Without a controller manager nobody makes the default one, and without it no pod is admitted."""
        await self.kube._write(  # type: ignore[attr-defined]
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}},
        )

    async def stop_operators(self) -> None:
        for operator, task in self.operators:
            operator.stop.set()
            await asyncio.wait([task], timeout=10)
        await _watches_end()

    async def leave(self) -> None:
        await self.stop_operators()
        for run in await self.kube.list(AGENT_RUN):
            metadata = run["metadata"]
            if metadata.get("finalizers"):
                await self.kube.patch_metadata(AGENT_RUN, metadata["namespace"], metadata["name"], {"finalizers": []})
            await self.kube.delete(AGENT_RUN, metadata["namespace"], metadata["name"])
        await self.store.aclose()
        await self.kube.aclose()

    @property
    def namespace(self) -> str:
        return f"team-{self.tag}"

    @property
    def harness(self) -> str:
        return f"harness-{self.tag}"

    @property
    def sandboxes(self) -> str:
        return f"sandboxes-{self.tag}"

    @property
    def system(self) -> str:
        return f"system-{self.tag}"

    def operator(self, **options: Any) -> Operator:
        """One more operator, started."""
        values: dict[str, Any] = {
            "redis_url": self.redis_url,
            "pods_file": Path(),
            "installation_secret_file": Path(),
            "kubeconfig": self.kubeconfig,
            "system_namespace": self.system,
            "harness_namespace": self.harness,
            "sandbox_namespace": self.sandboxes,
            "health_port": 0,
            "sweep_seconds": 60,
            "finished_pod_seconds": 0,
        }
        manifests = PlainManifests(self.harness, self.sandboxes, self.policies)
        settings = OperatorSettings(**values | options)
        made = Operator(
            settings=settings, manifests=manifests, refresh=_nothing, stop=asyncio.Event(), health_host="127.0.0.1"
        )
        self.operators.append((made, asyncio.create_task(made.run())))
        return made

    async def started(self, *, bound: float = BOUND, **options: Any) -> Operator:
        made = self.operator(**options)
        leading = asyncio.create_task(made.leading.wait())
        await asyncio.wait([leading, self.operators[-1][1]], timeout=bound, return_when=asyncio.FIRST_COMPLETED)
        if self.operators[-1][1].done():
            self.operators[-1][1].result()
        assert leading.done(), "the operator does not lead"
        return made

    async def halt(self, operator: Operator) -> None:
        task = next(task for each, task in self.operators if each is operator)
        operator.stop.set()
        assert await asyncio.wait_for(task, BOUND)

    async def quiet(self, operator: Operator) -> None:
        """Until everything that was under way is done."""

        async def idle() -> bool:
            if not operator.queue.idle:
                return False
            await asyncio.sleep(0.3)  # what a write sets off comes back as a watch event
            return operator.queue.idle

        await self.until(idle, "the operator is idle")

    async def quota(self, namespace: str, pods: int) -> None:
        """At most so many pods. Without a controller manager nobody else writes its status, which admission goes by."""
        path = f"/api/v1/namespaces/{namespace}/resourcequotas/pods"
        hard = {"pods": str(pods)}
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": {"hard": hard}}
        apply, query = "application/apply-patch+yaml", {"fieldManager": "test", "force": "true"}
        await self.kube._write("PATCH", path, body, apply, query=query)
        body["status"] = {"hard": hard, "used": {"pods": "0"}}
        await self.kube._write("PATCH", f"{path}/status", body, apply, query=query)

    async def bind(self, pod: Object, node: str) -> None:
        """The scheduler's part. The node need not exist; then nobody ever ends the pod."""
        metadata = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}, "target": target}
        await self.kube._write(
            "POST", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding", body
        )

    async def foreign_pod(self, namespace: str, name: str) -> Object:
        container = {"name": "x", "image": "localhost/none:1"}
        metadata = {"namespace": namespace, "name": name}
        return await self.kube.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        )

    async def kill(self, operator: Operator) -> None:
        """At whatever it is doing; the Lease it gives back, so that nobody has to wait."""
        task = next(task for each, task in self.operators if each is operator)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        await _watches_end()

    # -- objects -----------------------------------------------------------------------------------------------------

    async def apply(self, kind: str, name: str, spec: Object, *, namespace: str | None = None) -> Object:
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        return await self.kube.apply({"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec})

    async def run(self, name: str = "hello", **spec: Any) -> Played:
        obj = await self.apply(AGENT_RUN.name, name, {"prompt": "say hello"} | spec, namespace=self.namespace)
        return Played(self, name, obj["metadata"]["uid"])

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, bound: float = BOUND) -> Any:
        """Waits for a true answer, which it returns; the last resort where nothing can be waited on."""
        deadline = time.monotonic() + bound
        while not (answer := await condition()):
            assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
            await asyncio.sleep(0.02)
        return answer


async def _watches_end() -> None:
    """An operator does not wait for Kopf, since its process ends; here the process goes on, and the loop is shared."""
    ending = [task for task in asyncio.all_tasks() if task.get_name() == "watches" and task.cancelling()]
    if ending:
        await asyncio.wait(ending, timeout=10)


async def _nothing(kube: Kube) -> None:
    """There is no network to look destinations up in."""
