"""What the control-plane tests stand on: an operator, objects, and a kubelet and a harness that are played."""

import asyncio
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from towline.api.common import SecretRef
from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.controller.process import Operator
from towline.controller.status import seconds
from towline.events import sandbox as records
from towline.events.appender import Appender
from towline.events.event import Event, RunRef, draft
from towline.events.log import EventLog, RunState
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.events.totals import Totals
from towline.kube import login
from towline.kube.client import Kube, Object
from towline.kube.kinds import (
    AGENT_RUN,
    AGENT_TEMPLATE,
    MODEL_PROVIDER,
    OURS,
    POD,
    SANDBOX_CLASS,
)
from towline.manifests.workspace_claim import workspace_claim
from towline.naming import (
    EPOCH_LABEL,
    GENERATION_LABEL,
    ROLE_LABEL,
    RUN_NAMESPACE_LABEL,
    RUN_UID_LABEL,
    feed_key,
    harness_pod_name,
    sandbox_name,
)
from towline.settings import OperatorSettings

CRDS = Path(__file__).parents[2] / "crds"
BOUND = 15.0
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

    async def run(self, name: str = "hello", **spec: Any) -> "Played":
        obj = await self.apply(AGENT_RUN.name, name, {"prompt": "say hello"} | spec, namespace=self.namespace)
        return Played(self, name, obj["metadata"]["uid"])

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, bound: float = BOUND) -> Any:
        """Waits for a true answer, which it returns; the last resort where nothing can be waited on."""
        deadline = time.monotonic() + bound
        while not (answer := await condition()):
            assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
            await asyncio.sleep(0.02)
        return answer


@dataclass
class Played:
    """One AgentRun, seen from outside, and what kubelet, harness and gateway do about it."""

    stage: Stage
    name: str
    uid: str

    @property
    def ref(self) -> RunRef:
        return RunRef(self.stage.namespace, self.uid, self.name)

    async def get(self) -> Object | None:
        return await self.stage.kube.get(AGENT_RUN, self.stage.namespace, self.name)

    async def status(self) -> Object:
        obj = await self.get()
        assert obj is not None, f"run {self.name} is gone"
        return dict(obj.get("status") or {})

    async def state(self) -> RunState:
        return await EventLog(self.stage.store, self.ref).state()

    async def events(self) -> list[str]:
        """Types of the log's events, but for the operator's words about phases: see `phases`."""
        return [event.type for event in await self.log() if event.type != "run.status"]

    async def phases(self) -> list[str]:
        """As the log tells them."""
        return [event.payload["phase"] for event in await self.log() if event.type == "run.status"]

    async def feed(self) -> list[tuple[int, str]]:
        """Seq and type of what the namespace's feed has of the run."""
        entries = await self.stage.store.client.xrange(feed_key(self.stage.namespace))
        ours = [fields for _, fields in entries if fields[b"run"] == self.uid.encode()]
        return [(int(fields[b"seq"]), fields[b"type"].decode()) for fields in ours]

    async def change(self, **spec: Any) -> None:
        path = AGENT_RUN.path(self.stage.namespace, self.name)
        await self.stage.kube._write("PATCH", path, {"spec": spec}, "application/merge-patch+json")

    async def delete(self) -> None:
        await self.stage.kube.delete(AGENT_RUN, self.stage.namespace, self.name)

    async def until_phase(self, phase: str, bound: float = BOUND) -> Object:
        async def reached() -> Object | None:
            status = await self.status()
            return status if status.get("phase") == phase else None

        return await self.stage.until(reached, f"{self.name} is {phase}", bound)

    async def until_condition(self, kind: str, status: str, reason: str = "", bound: float = BOUND) -> Object:
        async def holds() -> Object | None:
            for each in (await self.status()).get("conditions") or ():
                if each["type"] == kind and each["status"] == status and reason in ("", each["reason"]):
                    return dict(each)
            return None

        return await self.stage.until(holds, f"{self.name} has {kind}={status} {reason}", bound)

    async def until(self, condition: Callable[[Object], bool], bound: float = BOUND) -> Object:
        async def holds() -> Object | None:
            status = await self.status()
            return status if status and condition(status) else None

        return await self.stage.until(holds, f"the status of {self.name} is as expected", bound)

    async def until_settled(self) -> None:
        async def settled() -> bool:
            obj = await self.get()
            return obj is not None and not obj["metadata"].get("finalizers")

        await self.stage.until(settled, f"{self.name} has no finalizer")

    async def until_gone(self, bound: float = BOUND) -> None:
        async def gone() -> bool:
            obj = await self.get()
            return obj is None or obj["metadata"]["uid"] != self.uid

        await self.stage.until(gone, f"{self.name} is gone", bound)

    # -- pods --------------------------------------------------------------------------------------------------------

    async def pods(self, namespace: str) -> list[Object]:
        return await self.stage.kube.list(POD, namespace, labels=f"{RUN_UID_LABEL}={self.uid}")

    async def harness(self, epoch: int = 1, bound: float = BOUND) -> Object:
        name = harness_pod_name(self.uid, epoch)
        return await self.stage.until(
            lambda: self.stage.kube.get(POD, self.stage.harness, name), f"harness pod {name}", bound
        )

    async def harness_is_deleted(self, epoch: int = 1) -> None:
        async def deleted() -> bool:
            pod = await self.stage.kube.get(POD, self.stage.harness, harness_pod_name(self.uid, epoch))
            return pod is None or "deletionTimestamp" in pod["metadata"]

        await self.stage.until(deleted, f"the harness pod of {self.name} is being deleted")

    async def sandbox(self, generation: int = 1) -> Object:
        name = sandbox_name(self.uid, generation)
        return await self.stage.until(lambda: self.stage.kube.get(POD, self.stage.sandboxes, name), f"pod {name}")

    async def play(self, pod: Object, **status: Any) -> None:
        """Writes a pod's status, as its kubelet would."""
        metadata = pod["metadata"]
        path = POD.path(metadata["namespace"], metadata["name"], "status")
        await self.stage.kube._write("PATCH", path, {"status": status}, "application/merge-patch+json")

    async def runs(self, pod: Object, ip: str = "10.1.2.3") -> None:
        state = {"running": {"startedAt": seconds(utc_now())}}
        await self.play(pod, phase="Running", podIP=ip, podIPs=[{"ip": ip}], containerStatuses=[_container(pod, state)])

    async def ends(self, pod: Object, code: int = 0, reason: str = "", *, by_node: str = "", **status: Any) -> None:
        """`reason` is the container's; `by_node` the pod's own, when it was the node that ended it."""
        now = seconds(utc_now())
        reason = reason or ("Completed" if code == 0 else "Error")
        ended = {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}
        phase = "Succeeded" if code == 0 else "Failed"
        status |= {"reason": by_node} if by_node else {}
        await self.play(pod, phase=phase, containerStatuses=[_container(pod, {"terminated": ended})], **status)

    async def waits(self, pod: Object, reason: str, message: str) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        await self.play(pod, phase="Pending", containerStatuses=[_container(pod, state)])

    async def vanishes(self, pod: Object) -> None:
        metadata = pod["metadata"]
        await self.stage.kube.delete(POD, metadata["namespace"], metadata["name"], grace_seconds=0)

    async def no_pods(self) -> None:
        async def none() -> bool:
            return not await self.pods(self.stage.harness) and not await self.pods(self.stage.sandboxes)

        await self.stage.until(none, "no pod is left")

    # -- harness and gateway -----------------------------------------------------------------------------------------

    def appender(self, epoch: int = 1) -> Appender:
        return Appender(self.stage.store, self.ref, src="harness", epoch=epoch, nonce=secrets.token_hex(4))

    async def completes(self, epoch: int = 1, text: str = "hello") -> None:
        """Writes what a harness would, to the end."""
        log, now = self.appender(epoch), utc_now()
        await log.append([draft("harness.started", {"kind": "native", "version": "0", "epoch": epoch}, now=now)])
        await log.append(
            [draft("turn.started", {"prompt_ids": ["0-0"]}, now=now)],
            Totals(turns=1, input_tokens=12, output_tokens=3),
        )
        result = {"text": text, "truncated": False, "sha256": "0" * 64}
        data = {"result": result, "usage": {}, "cost_micro_usd": 0, "turns": 1, "tool_calls": 0}
        await log.finish(draft("run.completed", data, now=now))

    async def fails(self, reason: str, message: str, epoch: int = 1) -> None:
        failed = draft("run.failed", {"reason": reason, "message": message}, now=utc_now())
        await self.appender(epoch).finish(failed)

    async def busy(self, events: int, seconds: float, epoch: int = 1) -> None:
        """A stream of events, spread over a time."""
        log = self.appender(epoch)
        for number in range(events):
            await log.append([draft("turn.completed", {"stop_reason": str(number)}, now=utc_now())])
            await asyncio.sleep(seconds / events)

    async def log(self) -> list[Event]:
        return await EventLog(self.stage.store, self.ref).all()

    async def wants_sandbox(self, call: str = "tc_1") -> SandboxRecord:
        return await records.want(self.stage.store, self.ref, call, now=utc_now())

    async def until_record(self, state: str) -> SandboxRecord:
        async def reached() -> SandboxRecord | None:
            record = await records.read(self.stage.store, self.ref)
            return record if record.state == state else None

        found: SandboxRecord = await self.stage.until(reached, f"the sandbox record is {state}")
        return found


def _container(pod: Object, state: Object) -> Object:
    name = pod["spec"]["containers"][0]["name"]
    return {
        "name": name,
        "image": "localhost/none:1",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


async def _watches_end() -> None:
    """An operator does not wait for Kopf, since its process ends; here the process goes on, and the loop is shared."""
    ending = [task for task in asyncio.all_tasks() if task.get_name() == "watches" and task.cancelling()]
    if ending:
        await asyncio.wait(ending, timeout=10)


async def _nothing(kube: Kube) -> None:
    """There is no network to look destinations up in."""
