"""The operator's failpoints: `python -m towline.controller` on a real API server and etcd, killed and replaced.

Kubelet, harness and gateway are played by the stage of tests/control_plane. A second operator stands by, as in an
installation of two; the Lease of a dead one is given up at once, where it would run out by itself after 15 s.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.control_plane.stage import ControlPlane, Played, Stage
from tests.control_plane.test_process import pods_of
from tests.durability.clients import told
from tests.durability.rig import ENVIRONMENT
from tests.durability.verdict import Case, Verdict, Way, armed_by
from towline.clock import utc_now
from towline.errors import TowlineError
from towline.events.event import draft
from towline.kube.errors import Conflict
from towline.kube.kinds import CLAIM, LEASE, NETWORK_POLICY, POD, SANDBOX_CLASS
from towline.local.processes import Child, python_module, start
from towline.local.valkey import server_binary, start_valkey
from towline.naming import (
    EPOCH_LABEL,
    ROLE_LABEL,
    RUN_NAMESPACE_LABEL,
    RUN_UID_LABEL,
    harness_pod_name,
    workspace_claim_name,
)
from towline.testing.checker import Recorded, Violation, check

ROOT = Path(__file__).parents[2]
KEEPING_CLASS = "keeping"
"""The class whose sandboxes have a volume for their workspace."""
PATIENCE_SECONDS = 60.0
"""For anything that an operator has to do, its successor's start and takeover included."""


class PatientStage(Stage):
    """Waits for a successor, too."""

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, bound: float = 0.0) -> Any:
        async def through() -> Any:
            try:
                return await condition()
            except TowlineError:
                return None

        return await super().until(through, what, max(bound, PATIENCE_SECONDS))


@dataclass
class Operators:
    """The one that leads, and one that stands by."""

    stage: Stage
    folder: Path
    started: list[Child] = field(default_factory=list)

    def start(self, failpoint: str = "") -> Child:
        number = len(self.started)
        (self.folder / "pods.json").write_text(json.dumps(pods_of(self.stage)))
        (self.folder / "secret").write_text("s" * 64)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        child = start(
            "operator",
            python_module("towline.controller"),
            environment={
                **ENVIRONMENT,
                "TOWLINE_REDIS_URL": self.stage.redis_url,
                "TOWLINE_PODS_FILE": str(self.folder / "pods.json"),
                "TOWLINE_INSTALLATION_SECRET_FILE": str(self.folder / "secret"),
                "TOWLINE_SYSTEM_NAMESPACE": self.stage.system,
                "TOWLINE_HARNESS_NAMESPACE": self.stage.harness,
                "TOWLINE_SANDBOX_NAMESPACE": self.stage.sandboxes,
                "TOWLINE_HEALTH_PORT": str(port),
                "TOWLINE_SWEEP_SECONDS": "1",
                "TOWLINE_FINISHED_POD_SECONDS": "0",
                "TOWLINE_FAILPOINT": failpoint,
                "KUBECONFIG": str(self.stage.kubeconfig),
            },
            log=self.folder / f"operator-{number}.log",
            folder=self.folder,
        )
        self.started.append(child)
        return child

    async def lead(self, failpoint: str) -> Child:
        """One that leads, told of its failpoint, and one behind it; the successor of the first leads at once."""
        for child in self.started:
            child.kill()
            await child.exited.wait()
        await self.give_up_lease()
        first = self.start(failpoint)

        async def led() -> bool:
            return first.exit is not None or bool(await self._holder())

        await self.stage.until(led, "the operator leads")
        self.start()
        return first

    async def give_up_lease(self) -> None:
        found = await self.stage.kube.get(LEASE, self.stage.system, "towline-operator")
        if found is not None:
            found["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            try:
                await self.stage.kube.replace(found)
            except Conflict:
                await self.give_up_lease()

    async def _holder(self) -> str:
        found = await self.stage.kube.get(LEASE, self.stage.system, "towline-operator")
        return str(((found or {}).get("spec") or {}).get("holderIdentity") or "")

    async def succeed(self, first: Child) -> None:
        """When the first one dies, its Lease does not have to run out."""
        await first.exited.wait()
        await self.give_up_lease()

    async def aclose(self) -> None:
        for child in self.started:
            child.kill()
            await child.exited.wait()

    def tail(self) -> str:
        return "\n".join(f"-- {child.log.name}\n{child.tail()}" for child in self.started[-2:])


# -- the runs --------------------------------------------------------------------------------------------------------


async def lose_policies(stage: Stage) -> None:
    """Each is deleted, and put back once, so that the points on the way are passed as often each time."""
    lost = {policy["metadata"]["uid"] for policy in await stage.kube.list(NETWORK_POLICY, stage.sandboxes)}
    for policy in await stage.kube.list(NETWORK_POLICY, stage.sandboxes):
        await stage.kube.delete(NETWORK_POLICY, stage.sandboxes, policy["metadata"]["name"])

    async def back() -> bool:
        there = {policy["metadata"]["uid"] for policy in await stage.kube.list(NETWORK_POLICY, stage.sandboxes)}
        return len(there) == len(lost) and not there & lost

    await stage.until(back, "the network policies are back")


async def life(run: Played) -> None:
    """Two harnesses, two sandboxes, success, and the end of everything."""
    await lose_policies(run.stage)
    first = await run.harness()
    await run.runs(first)
    started = {"kind": "native", "version": "0", "epoch": 1}
    await run.appender().append([draft("harness.started", started, now=utc_now())])
    await run.wants_sandbox("tc_1")
    await run.runs(await run.sandbox(1))
    await run.until_record("Ready")
    await run.vanishes(await run.sandbox(1))
    await run.until_record("Lost")
    await run.wants_sandbox("tc_2")
    await run.runs(await run.sandbox(2))
    await run.until_record("Ready")
    await run.ends(first, 1)
    second = await run.harness(2)
    await run.runs(second)
    await run.completes(2)
    await run.ends(second)
    await run.until_phase("Succeeded")
    await run.until_settled()
    await run.no_pods()


async def cancelled(run: Played) -> None:
    pod = await run.harness()
    await run.runs(pod)
    await run.until_phase("Running")
    await run.change(cancel=True)

    async def told() -> bool:
        return (await run.state()).cancel is not None

    await run.stage.until(told, "the run is told that it is cancelled")
    await run.ends(pod, 11)
    await run.until_phase("Cancelled")
    await run.until_settled()
    await run.no_pods()


async def kept(run: Played) -> None:
    """Cancelled, with a workspace that would have outlived its pod."""
    pod = await run.harness()
    await run.runs(pod)
    await run.wants_sandbox("tc_1")
    await run.runs(await run.sandbox(1))
    await run.until_record("Ready")
    await run.change(cancel=True)
    await run.ends(pod, 11)
    await run.until_phase("Cancelled")
    await run.until_settled()
    await run.no_pods()

    async def going() -> bool:
        """Nobody here lifts the protection of a claim that was deleted."""
        claim = await run.stage.kube.get(CLAIM, run.stage.sandboxes, workspace_claim_name(run.uid))
        return claim is None or "deletionTimestamp" in claim["metadata"]

    await run.stage.until(going, "the claim goes")


async def deleted(run: Played) -> None:
    """In the middle of its work."""
    pod = await run.harness()
    await run.runs(pod)
    await run.until_phase("Running")
    await run.delete()
    await run.until_gone()
    await run.no_pods()

    async def expires() -> bool:
        return bool(await run.stage.store.client.ttl(run.ref.keys.log) > 0)

    await run.stage.until(expires, "the history of the deleted run expires")


async def orphaned(run: Played) -> None:
    """A pod of a run that is not there any more, as a dead operator may leave it."""
    stage, uid = run.stage, f"gone-{run.uid[:8]}"
    labels = {ROLE_LABEL: "harness", EPOCH_LABEL: "1", RUN_UID_LABEL: uid, RUN_NAMESPACE_LABEL: stage.namespace}
    name = harness_pod_name(uid, 1)
    container = {"name": "harness", "image": "localhost/none:1"}
    metadata = {"namespace": stage.harness, "name": name, "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    await stage.kube.create(pod)

    async def gone() -> bool:
        return await stage.kube.get(POD, stage.harness, name) is None

    await stage.until(gone, "the orphan is gone")
    await cancelled(run)


@dataclass(frozen=True)
class Play:
    """What is done, and what must be true afterwards."""

    act: Callable[[Played], Awaitable[None]]
    harnesses: int
    phase: str
    """Empty for a run that is gone."""
    once: tuple[str, ...]
    """Events that are in the log exactly once."""
    spec: Mapping[str, Any] = field(default_factory=dict)


PLAYS = {
    "life": Play(life, 2, "Succeeded", ("run.started", "harness.lost", "run.completed")),
    "cancelled": Play(cancelled, 1, "Cancelled", ("run.started", "run.cancelled")),
    "kept": Play(
        kept,
        1,
        "Cancelled",
        ("run.started", "sandbox.ready", "run.cancelled"),
        {"sandbox": {"className": KEEPING_CLASS, "retain": "Suspend"}},
    ),
    "deleted": Play(deleted, 1, "", ("run.started", "run.cancelled")),
    "orphaned": Play(orphaned, 1, "Cancelled", ("run.started", "run.cancelled")),
}


@dataclass
class OperatorStand:
    """Plays one case after the other on one control plane."""

    operators: Operators
    ways: dict[str, list[Way]] = field(default_factory=dict)
    _cases: int = 0

    async def explore(self) -> None:
        # The first run with a sandbox on a new cluster needs what the later ones find there.
        await self._played("kept", "")
        for name in PLAYS:
            first, violations, story = await self._played(name, "tell")
            if violations:
                raise AssertionError(f"{name}, undisturbed: {[str(each) for each in violations]}\n{story}")
            for point, passes in Counter(told(first.log.read_bytes())).items():
                self.ways.setdefault(point, []).append(Way(name, 1, passes))

    async def play(self, case: Case) -> Verdict:
        random = Random(f"{case.point}:{case.seed}")
        way = random.choice(self.ways[case.point])
        armed = armed_by(case, way, random)
        began = time.monotonic()
        first, violations, story = await self._played(way.scenario, armed)
        reached = first.exit is not None and first.exit.signal == signal.SIGKILL
        return Verdict(case, f"{way.scenario}, {armed}", reached, violations, time.monotonic() - began, story)

    async def _played(self, name: str, failpoint: str) -> tuple[Child, list[Violation], str]:
        stage, play = self.operators.stage, PLAYS[name]
        self._cases += 1
        first = await self.operators.lead(failpoint)
        succeeding = asyncio.create_task(self.operators.succeed(first))
        run = await stage.run(f"{name}-{self._cases}", **play.spec)
        pods: dict[tuple[str, str], int] = {}
        watching = asyncio.create_task(_pods_of(run, pods))
        violations: list[Violation] = []
        try:
            await play.act(run)
            log = await run.log()
            types = [event.type for event in log]
            violations += [*_told((await run.get() or {}).get("status") or {}, types, play), *_made(pods, play)]
            violations += check(Recorded(log=log, replay=await run.log()))
            await run.delete()
            await run.until_gone()
        except Exception as fault:
            violations.append(Violation("terminal", f"the play did not come to its end: {fault!r}"))
        finally:
            watching.cancel()
            if first.exit is None:
                succeeding.cancel()
            await asyncio.gather(watching, succeeding, return_exceptions=True)
        return first, violations, await self._story(run) if violations else ""

    async def _story(self, run: Played) -> str:
        lines = [f"{event.seq:>4} {event.epoch} {event.src:<8} {event.type}" for event in await run.log()]
        obj = await run.get()
        return "\n".join([*lines, json.dumps((obj or {}).get("status"))[:2000], self.operators.tail()])


def _told(status: dict[str, Any], types: list[str], play: Play) -> list[Violation]:
    found = []
    if play.phase and status.get("phase") != play.phase:
        found.append(Violation("terminal", f"phase {status.get('phase')}, expected {play.phase}"))
    if play.phase and status.get("epoch") != play.harnesses:
        found.append(Violation("duplicated", f"epoch {status.get('epoch')} after {play.harnesses} harnesses"))
    for type in play.once:
        if types.count(type) != 1:
            kind = "lost" if type not in types else "duplicated"
            found.append(Violation(kind, f"{type} is in the log {types.count(type)} times"))
    return found


def _made(pods: dict[tuple[str, str], int], play: Play) -> list[Violation]:
    names = Counter(name for name, _ in pods)
    twice = [name for name, times in names.items() if times > 1]
    found = [Violation("executed twice", f"pod {name} was made twice") for name in twice]
    if len(names) > play.harnesses:  # fewer: one came and went between two looks
        found.append(Violation("duplicated", f"{len(names)} harness pods, expected {play.harnesses}: {sorted(names)}"))
    return found


async def _pods_of(run: Played, seen: dict[tuple[str, str], int]) -> None:
    """Every harness pod that ever was, as seen now and then."""
    while True:
        try:
            for pod in await run.pods(run.stage.harness):
                seen[pod["metadata"]["name"], pod["metadata"]["uid"]] = 1
        except TowlineError:
            pass
        await asyncio.sleep(0.1)


@asynccontextmanager
async def operator_stand() -> AsyncIterator[OperatorStand]:
    """Raises RuntimeError where there is no control plane to be had."""
    name = f"sweep-{os.getpid()}"
    up = await asyncio.to_thread(_cluster, "up", "--name", name, "--control-plane-only")
    if up.returncode:
        raise RuntimeError(f"no control plane: {up.stderr.strip()}")
    try:
        told = (await asyncio.to_thread(_cluster, "env", "--name", name)).stdout.splitlines()
        said = dict(line.removeprefix("export ").split("=", 1) for line in told)
        plane = ControlPlane(name, Path(said["KUBECONFIG"]), Path(said["PATH"].partition(":")[0]))
        with tempfile.TemporaryDirectory(prefix="tlo-", dir="/tmp") as text:
            folder = Path(text)
            valkey = await start_valkey(
                server_binary(), data=folder / "valkey", socket=folder / "valkey.sock", log=folder / "valkey.log"
            )
            stage = await PatientStage.enter(plane, f"unix://{folder}/valkey.sock")
            await stage.apply(SANDBOX_CLASS.name, KEEPING_CLASS, {"workspace": {"volume": {"size": "1Gi"}}})
            operators = Operators(stage, folder)
            try:
                yield OperatorStand(operators)
            finally:
                await operators.aclose()
                await stage.leave()
                valkey.kill()
                await valkey.exited.wait()
    finally:
        await asyncio.to_thread(_cluster, "down", "--name", name)


def _cluster(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "e2e.cluster", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
