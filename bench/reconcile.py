"""The operator with 1,000 unfinished runs on a real control plane, its pods played: restart, CPU, memory, writes.

The operator is the real process with the real manifests; kubelet and harness are this one. Needs the programs of
`python -m e2e.cluster build`.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import yaml

from bench.figure import Figure, Goal
from bench.proc import cpu_seconds, memory_mb
from bench.stage import Stage, stage
from e2e.cluster import lifecycle
from towline.clock import utc_now
from towline.events.appender import Appender
from towline.events.event import RunRef, draft
from towline.events.totals import Totals
from towline.kube import login
from towline.kube.client import Kube, Object
from towline.kube.kinds import AGENT_RUN, POD, Kind, kind_of
from towline.local.processes import Child, python_module
from towline.naming import RUN_NAMESPACE_LABEL, RUN_UID_LABEL

CRDS = Path(__file__).parents[1] / "crds"
API = "towline.dev/v1alpha1"
SYSTEM, HARNESS, SANDBOXES, TEAM = "towline-system", "towline-harness", "towline-sandboxes", "team"
PORT = 18081
AT_ONCE = 8
STILL_SECONDS = 1.5
"""Nothing happens for so long: it is steady."""
PATIENCE_SECONDS = 300.0
STATUS = "application/merge-patch+json"

SIZES = {"cpu": "100m", "memory": "128Mi", "disk": "256Mi"}
PODS = {
    "systemNamespace": SYSTEM,
    "harness": {
        "namespace": HARNESS,
        "image": {"reference": "localhost/harness:1"},
        "serviceAccount": "default",
        "placement": {"nodeSelector": {}},
        "gatewayUrl": "http://127.0.0.1:1/mcp",
        "requests": {"cpu": "10m", "memory": "32Mi"},
        "limits": {"memory": "64Mi"},
    },
    "sandbox": {
        "namespace": SANDBOXES,
        "image": {"reference": "localhost/sandbox:1"},
        "tools": {"reference": "localhost/tools:1"},
        "placement": {"nodeSelector": {}},
        "requests": SIZES,
        "limits": SIZES,
    },
}


async def measure(quick: bool) -> AsyncIterator[Figure]:
    number, quiet_seconds = (50, 10) if quick else (1000, 60)
    async with stage() as on, control_plane(on) as plane:
        operator = await plane.start_operator("first")
        begun = await operator.look()
        runs = await plane.create(number)
        await plane.play_harnesses(runs, _running, operator)
        await operator.until_steady(at_least=number)
        created = await operator.look()
        yield Figure(
            name="operator_cpu_per_started_run",
            value=(created.cpu - begun.cpu) / number * 1000,
            unit="ms",
            samples=number,
            note="create to Running, all looks and writes of it; pods played at once",
        )
        await operator.stop()

        operator = await plane.start_operator("second")
        restart = await operator.until_steady(at_least=number)
        goal = None if quick else Goal(6)
        yield Figure(
            name="operator_restart_to_steady_seconds",
            value=restart,
            unit="s",
            samples=1,
            goal=goal,
            note=f"process start to the last look, {number} unfinished runs with a harness pod each",
        )
        now = await operator.look()
        yield Figure(name="operator_restart_cpu", value=now.cpu, unit="s", samples=1)
        before = await operator.look()
        await asyncio.sleep(quiet_seconds)
        after = await operator.look()
        yield Figure(
            name="operator_steady_writes",
            value=after.writes - before.writes,
            unit="writes",
            samples=number,
            goal=Goal(0),
            note=f"in {quiet_seconds} s with {number} runs, the lease apart",
        )
        yield Figure(
            name="operator_memory",
            value=after.rss,
            unit="MB",
            samples=1,
            goal=None if quick else Goal(100),
            note=f"RSS, steady; {now.rss:.0f} MB right after the restart, at most {after.rss_most:.0f} MB",
        )
        idle = (after.cpu - before.cpu) / quiet_seconds * 1000
        yield Figure(name="operator_idle_cpu", value=idle, unit="ms/s", samples=1)

        before = await operator.look()
        await plane.each(runs, plane.one_event)
        await operator.until_steady(at_least=int(before.reconciles) + number)
        after = await operator.look()
        yield Figure(
            name="operator_cpu_per_write",
            value=(after.cpu - before.cpu) / (after.writes - before.writes) * 1000,
            unit="ms",
            samples=int(after.writes - before.writes),
            goal=Goal(5),
            note=f"one event a run, one status each; {after.reconciles - before.reconciles:.0f} looks",
        )

        before = await operator.look()
        await plane.each(runs, plane.complete)
        await plane.play_harnesses(runs, _ended, operator)
        await plane.until_finished(number)
        await operator.until_steady(at_least=int(before.reconciles) + number)
        after = await operator.look()
        yield Figure(
            name="operator_writes_per_run",
            value=(created.writes - begun.writes + after.writes - before.writes) / number,
            unit="writes",
            samples=number,
            note="create to settled: Events of kubectl describe included, counters on the way not",
        )
        yield Figure(
            name="operator_cpu_per_finished_run",
            value=(after.cpu - before.cpu) / number * 1000,
            unit="ms",
            samples=number,
            note="terminal event to settled",
        )
        await operator.stop()


@dataclass(frozen=True, slots=True)
class Look:
    """What the operator and the kernel say of it at a moment."""

    cpu: float
    rss: float
    rss_most: float
    reconciles: float
    queued: float
    writes: float


@dataclass(slots=True)
class Operator:
    child: Child
    begun: float
    session: aiohttp.ClientSession

    async def look(self) -> Look:
        async with self.session.get(f"http://127.0.0.1:{PORT}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        told = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
        return Look(
            cpu=cpu_seconds(self.child.pid),
            rss=memory_mb(self.child.pid),
            rss_most=memory_mb(self.child.pid, "VmHWM"),
            reconciles=told["towline_reconcile_seconds_count"],
            queued=told.get("towline_queue_length", 0),
            writes=told.get("towline_api_writes_total", 0),
        )

    async def until_steady(self, at_least: int) -> float:
        """Seconds from the start of the process to the last look at a run, once there have been so many."""
        last, changed = -1.0, perf_counter()
        deadline = perf_counter() + PATIENCE_SECONDS
        while last < at_least or perf_counter() - changed < STILL_SECONDS:
            assert self.child.exit is None, self.child.tail()
            assert perf_counter() < deadline, f"not steady after {PATIENCE_SECONDS:.0f} s: {last} looks"
            await asyncio.sleep(0.05)
            try:
                now = await self.look()
            except (aiohttp.ClientError, LookupError):
                continue
            if now.reconciles != last or now.queued:
                last, changed = now.reconciles, perf_counter()
        return changed - self.begun

    async def stop(self) -> None:
        os.kill(self.child.pid, 15)
        await asyncio.wait_for(self.child.exited.wait(), 20)


@dataclass(slots=True)
class Plane:
    """API server and etcd, with what plays the kubelets and the harnesses."""

    on: Stage
    kubeconfig: Path
    kube: Kube
    session: aiohttp.ClientSession

    async def start_operator(self, name: str) -> Operator:
        folder = self.on.held.runtime
        (folder / "pods.json").write_text(json.dumps(PODS))
        (folder / "secret").write_text("0" * 64)
        environment = {
            "TOWLINE_REDIS_URL": self.on.url,
            "TOWLINE_PODS_FILE": str(folder / "pods.json"),
            "TOWLINE_INSTALLATION_SECRET_FILE": str(folder / "secret"),
            "KUBECONFIG": str(self.kubeconfig),
            "TOWLINE_HEALTH_PORT": str(PORT),
            "TOWLINE_FINISHED_POD_SECONDS": "0",
            "TOWLINE_LOG_LEVEL": "warning",
        }
        begun = perf_counter()
        made = Operator(self.on.start(name, python_module("towline.controller"), environment), begun, self.session)
        deadline = begun + PATIENCE_SECONDS
        while perf_counter() < deadline:
            assert made.child.exit is None, made.child.tail()
            try:
                await made.look()
                return made
            except (aiohttp.ClientError, LookupError):
                await asyncio.sleep(0.02)
        raise TimeoutError("the operator does not serve its metrics")

    async def each(self, items: Sequence[Any], do: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """`do` for all of them, a few at once; the results in order."""
        room = asyncio.Semaphore(AT_ONCE)

        async def one(item: Any) -> Any:
            async with room:
                return await do(item)

        return list(await asyncio.gather(*(one(item) for item in items)))

    async def create(self, number: int) -> list[RunRef]:
        async def one(index: int) -> RunRef:
            metadata = {"namespace": TEAM, "name": f"run-{index:04}"}
            spec = {"prompt": "x" * 1000}
            obj = await self.kube.create(
                {"apiVersion": API, "kind": AGENT_RUN.name, "metadata": metadata, "spec": spec}
            )
            return RunRef(TEAM, obj["metadata"]["uid"], metadata["name"])

        return await self.each(range(number), one)

    async def play_harnesses(self, runs: Sequence[RunRef], status: Callable[[], Object], by: Operator) -> None:
        """Gives each run's harness pod a status, as soon as the pod is there."""
        waiting = {run.uid for run in runs}
        deadline = perf_counter() + PATIENCE_SECONDS
        while waiting:
            assert by.child.exit is None, by.child.tail()
            assert perf_counter() < deadline, f"{len(waiting)} runs without a harness pod"
            there = await self.kube.list(POD, HARNESS, labels=f"{RUN_NAMESPACE_LABEL}={TEAM}", metadata_only=True)
            fresh = [obj for obj in there if obj["metadata"]["labels"][RUN_UID_LABEL] in waiting]
            await self.each(fresh, lambda obj: self.patch_status(POD, obj, status()))
            waiting -= {obj["metadata"]["labels"][RUN_UID_LABEL] for obj in fresh}

    async def patch_status(self, kind: Kind, obj: Object, status: Object) -> None:
        metadata = obj["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"], "status")
        await self.kube._write("PATCH", path, {"status": status}, STATUS, missing_ok=True)

    async def one_event(self, run: RunRef) -> None:
        log = Appender(self.on.store, run, src="harness", epoch=1, nonce="bench")
        started = draft("turn.started", {"prompt_ids": ["0-0"]}, now=utc_now())
        await log.append([started], Totals(turns=1, input_tokens=100))

    async def complete(self, run: RunRef) -> None:
        log = Appender(self.on.store, run, src="gateway", epoch=1, nonce="end")
        result = {"text": "done", "truncated": False, "sha256": "0" * 64}
        await log.finish(draft("run.completed", {"result": result}, now=utc_now()))

    async def until_finished(self, number: int) -> None:
        deadline = perf_counter() + PATIENCE_SECONDS
        while len(await self.kube.list(AGENT_RUN, TEAM, fields="status.phase=Succeeded", metadata_only=True)) < number:
            assert perf_counter() < deadline, "not all runs have finished"
            await asyncio.sleep(0.2)


def _running() -> Object:
    state = {"running": {"startedAt": _now()}}
    return {"phase": "Running", "podIP": "10.1.1.1", "containerStatuses": [_container(state)]}


def _ended() -> Object:
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}}
    return {"phase": "Succeeded", "containerStatuses": [_container(state)]}


def _container(state: Object) -> Object:
    image = {"image": "localhost/harness:1", "imageID": ""}
    return {"name": "harness", **image, "ready": False, "restartCount": 0, "state": state}


def _now() -> str:
    return utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")


@asynccontextmanager
async def control_plane(on: Stage) -> AsyncIterator[Plane]:
    """One of its own, with our kinds and namespaces."""
    name = f"bench-{os.getpid()}"
    cluster = await asyncio.to_thread(lifecycle.up, name, control_plane_only=True)
    kube = Kube(login.client(await login.configuration(cluster.kubeconfig())), field_manager="bench")
    session = aiohttp.ClientSession()
    try:
        for path in sorted(CRDS.glob("*.yaml")):
            definition = yaml.safe_load(path.read_text())
            await kube.apply(definition)
        for namespace in (SYSTEM, HARNESS, SANDBOXES, TEAM):
            await _make(kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            await kube._write("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        for kind, spec, where in (
            ("AgentTemplate", {"tools": ["exec"]}, {"namespace": SYSTEM}),
            ("ModelProvider", {"api": "Scripted", "scripted": {"steps": [{"text": "hi"}]}}, {}),
            ("SandboxClass", {}, {}),
        ):
            await _make(kube, {"apiVersion": API, "kind": kind, "metadata": {"name": "default", **where}, "spec": spec})
        yield Plane(on, cluster.kubeconfig(), kube, session)
    finally:
        await session.close()
        await kube.aclose()
        await asyncio.to_thread(lifecycle.down, name)


async def _make(kube: Kube, obj: Object) -> None:
    deadline = perf_counter() + PATIENCE_SECONDS
    while not await kube.served(kind_of(obj)):
        assert perf_counter() < deadline, f"{obj['kind']} is not served"
        await asyncio.sleep(0.05)
    await kube.create(obj)
