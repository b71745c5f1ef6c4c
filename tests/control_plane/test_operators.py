"""Operators come, go, die at any moment, and are two at once: a run never notices."""

import asyncio
import socket
from asyncio.subprocess import Process
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane.played import ready_sandbox, working
from tests.control_plane.stage import OwnStore, Stage
from tests.control_plane.test_process import started
from tests.control_plane.test_sleep import asleep
from towline.clock import utc_now
from towline.controller import leader, outcome, plan
from towline.controller.carry_out import Hands
from towline.controller.handlers import Watches
from towline.controller.policies import NETWORK_POLICY
from towline.errors import Fenced
from towline.events import runs
from towline.events.event import draft
from towline.events.store import Store
from towline.kube.kinds import LEASE, POD
from towline.naming import EPOCH_LABEL, RUN_UID_LABEL


async def test_a_new_operator_goes_on_where_the_last_one_stopped(stage: Stage) -> None:
    first = await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)
    await run.until_condition("SandboxReady", "True")
    before = await run.status()
    await stage.halt(first)

    second = await stage.started()
    await stage.quiet(second)

    after = await run.status()
    assert (after["conditions"], after["epoch"]) == (before["conditions"], before["epoch"])
    assert second.kube.writes <= 1, "the counters that were due, at most"
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded")
    await run.no_pods()


async def test_what_happened_while_no_operator_ran_is_made_up_for(stage: Stage) -> None:
    first = await stage.started()
    crashed, done, waiting = (
        await working(stage, "crashed"),
        await working(stage, "done"),
        await working(stage, "waits"),
    )
    await stage.halt(first)

    await crashed.ends(await crashed.harness(), 1)
    await done.completes()
    await done.ends(await done.harness())
    await waiting.wants_sandbox()
    fresh = await stage.run("fresh")
    await stage.started()

    await crashed.harness(2)
    await done.until_phase("Succeeded")
    await waiting.sandbox()
    await fresh.harness()


@pytest.mark.parametrize("actions", range(6))
async def test_an_operator_killed_between_any_two_actions_loses_nothing(
    stage: Stage, actions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run of the first operator: finalizer, snapshot, epoch, fence, pod; killed after n of them."""
    do = Hands._do
    done = 0

    async def dies(self: Hands, action: object, seen: object) -> object:
        nonlocal done
        if done == actions:
            raise asyncio.CancelledError
        done += 1
        return await do(self, action, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(Hands, "_do", dies)
    first = await stage.started()
    run = await stage.run()
    await stage.until(lambda: _equals(lambda: done, min(actions, 5)), "the operator came so far")
    await stage.kill(first)
    monkeypatch.setattr(Hands, "_do", do)

    await stage.started()

    await run.runs(await run.harness(1))
    status = await run.until_phase("Running")
    assert status["epoch"] == 1
    assert await run.events() == ["run.started"]
    assert len(await run.pods(stage.harness)) == 1


async def _equals(value: object, expected: int) -> bool:
    return value() == expected  # type: ignore[operator]


async def test_only_one_of_two_operators_works(stage: Stage) -> None:
    first = await stage.started()
    second = stage.operator()
    runs = [await stage.run(f"run-{number}") for number in range(5)]
    for run in runs:
        await run.runs(await run.harness())
        await run.until_phase("Running")

    assert not second.leading.is_set()
    assert second.kube.writes == 0
    await stage.halt(first)
    await asyncio.wait_for(second.leading.wait(), 5)
    for run in runs:
        await run.completes()
        await run.ends(await run.harness())
        await run.until_phase("Succeeded")


async def keeps_the_lease(self: leader.Elector) -> None:
    """A process that is killed gives nothing back."""


async def test_a_standby_takes_over_from_one_that_was_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "DURATION_SECONDS", 3)
    monkeypatch.setattr(leader, "DEADLINE_SECONDS", 2.0)
    monkeypatch.setattr(leader, "PERIOD_SECONDS", 0.5)
    monkeypatch.setattr(leader.Elector, "release", keeps_the_lease)
    first = await stage.started()
    run = await working(stage)
    second = stage.operator()

    await stage.kill(first)

    await asyncio.wait_for(second.leading.wait(), 10)
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded")


async def test_an_operator_whose_lease_was_taken_writes_no_more_and_ends(stage: Stage) -> None:
    operator = await stage.started()
    task = stage.operators[-1][1]
    lease = await stage.kube.get(LEASE, stage.system, "towline-operator")
    assert lease is not None
    lease["spec"]["holderIdentity"] = "somebody-else"
    await stage.kube.replace(lease)

    assert await asyncio.wait_for(task, 10) is False
    run = await stage.run()
    await asyncio.sleep(0.5)
    assert not (await run.status())
    assert operator.leading.is_set()


async def test_a_store_that_comes_later_is_waited_for(stage: Stage, store_of_its_own: OwnStore) -> None:
    await stage.started(redis_url=store_of_its_own.url)
    run = await stage.run()
    await run.until_condition("HarnessReady", "False", "StoreUnavailable")
    await run.until_condition("Accepted", "True")
    assert await run.pods(stage.harness) == []

    store_of_its_own.start()
    stage.store = Store.connect(store_of_its_own.url)

    await run.runs(await run.harness(bound=20))
    await run.until_phase("Running")


async def test_a_store_that_goes_and_comes_back_changes_nothing_of_a_run_that_works(
    stage: Stage, store_of_its_own: OwnStore
) -> None:
    store_of_its_own.start()
    stage.store = Store.connect(store_of_its_own.url)
    await stage.started(redis_url=store_of_its_own.url)
    run, other = await working(stage), await working(stage, "other")
    before = await run.status()

    store_of_its_own.stop()
    await other.delete()
    await other.harness_is_deleted()
    after = await run.status()
    assert (after["phase"], after["conditions"]) == (before["phase"], before["conditions"])
    store_of_its_own.start()

    await other.until_gone(bound=20)
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded", bound=20)
    assert (await other.events())[-1] == "run.cancelled"


async def test_a_run_that_a_newer_operator_stored_says_so_after_a_rollback_and_can_be_cancelled(stage: Stage) -> None:
    first = await stage.started()
    run = await working(stage)
    await stage.halt(first)
    await stage.store.client.set(run.ref.keys.spec, '{"version": 2}')
    await run.ends(await run.harness(), 1)

    await stage.started()

    told = await run.until_condition("Succeeded", "Unknown", "InvalidSpec")
    assert told["message"] == "the stored snapshot is of a version that this operator does not know"
    await run.change(cancel=True)
    await run.until_phase("Cancelled", bound=5)


async def test_runs_whose_history_the_store_lost_end_and_can_be_cancelled(
    stage: Stage, store_of_its_own: OwnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundled store without persistence, whose pod was replaced; the operator has looked at the runs before."""
    for module in (outcome, plan):
        monkeypatch.setattr(module, "ABSENCE_BELIEVED", timedelta(seconds=4))
    store_of_its_own.start()
    stage.store = Store.connect(store_of_its_own.url)
    operator = await stage.started(redis_url=store_of_its_own.url, sweep_seconds=1)
    works, begins_suspended = await working(stage, "works"), await stage.run("suspended", suspend=True)
    asleep_one, cancelled = await asleep(stage, "asleep"), await asleep(stage, "cancelled")
    await begins_suspended.until_phase("Suspended")
    await stage.quiet(operator)

    store_of_its_own.start_empty()
    await cancelled.change(cancel=True)

    await cancelled.until_phase("Cancelled", bound=10)
    told = await works.appender().append([draft("turn.completed", {"stop_reason": "end_turn"}, now=utc_now())])
    assert told == [1], "its harness goes on, in a log that begins anew"
    for run in (asleep_one, works, begins_suspended):
        assert (await run.until_phase("Failed", bound=20))["failure"]["reason"] == "StoreLost"
    await works.harness_is_deleted()


async def test_a_network_policy_that_is_removed_is_put_back(stage: Stage) -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": stage.sandboxes, "name": "default-deny"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }
    stage.policies = [policy]
    await stage.started(sweep_seconds=1)
    there = lambda: stage.kube.get(NETWORK_POLICY, stage.sandboxes, "default-deny")  # noqa: E731
    await stage.until(there, "the policy is there")

    await stage.kube.delete(NETWORK_POLICY, stage.sandboxes, "default-deny")

    await stage.until(there, "the policy is back")


def test_kopf_is_used_for_watching_alone() -> None:
    """Anything else it offers patches objects, keeps annotations or finalizers, or loses events."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(__import__("towline.controller.handlers", fromlist=["handlers"])))
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    decorators = {name for name in used if name.startswith("kopf.on.")}
    assert decorators == {"kopf.on.event", "kopf.on.login"}
    assert Watches


async def test_a_cluster_restored_from_a_backup_goes_on_above_every_epoch_that_the_store_knows(stage: Stage) -> None:
    """The status has forgotten what the store has not: nothing is granted twice, and the harness of then is fenced."""
    await stage.started()
    run = await working(stage)
    await runs.append_once(stage.store, run.ref, 7, [], guard="epoch:7")

    await run.runs(await run.harness(8, bound=70))

    assert (await run.until(lambda status: status.get("epoch") == 8))["attempt"] == 0
    assert (await run.state()).epoch == 8
    with pytest.raises(Fenced):
        await run.completes(7)
    await run.completes(8)
    await run.until_phase("Succeeded")


async def test_an_operator_that_is_killed_again_and_again_brings_every_run_to_its_end_once(
    stage: Stage, tmp_path: Path
) -> None:
    """kill -9 of its process, every second or so, while twenty runs come, crash once and complete."""
    played = asyncio.Event()
    pods_made: set[tuple[str, str]] = set()

    async def kubelet() -> None:
        """Runs every pod; each run's first harness crashes, its second completes."""
        done: set[str] = set()
        while not played.is_set():
            for pod in await stage.kube.list(POD, stage.harness):
                metadata = pod["metadata"]
                pods_made.add((metadata["name"], metadata["uid"]))
                if metadata["uid"] in done or metadata.get("deletionTimestamp"):
                    continue
                done.add(metadata["uid"])
                run = by_uid[metadata["labels"][RUN_UID_LABEL]]
                await run.runs(pod)
                if metadata["labels"][EPOCH_LABEL] == "1":
                    await run.ends(pod, 1)
                else:
                    await run.completes(int(metadata["labels"][EPOCH_LABEL]))
                    await run.ends(pod)
            await asyncio.sleep(0.1)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    settings = {"TOWLINE_HEALTH_PORT": port, "TOWLINE_FINISHED_POD_SECONDS": "0", "TOWLINE_SWEEP_SECONDS": "3"}
    all_runs = [await stage.run(f"r{number}") for number in range(20)]
    by_uid = {run.uid: run for run in all_runs}
    playing = asyncio.create_task(kubelet())
    try:
        for seconds in (1.5, 0.8, 1.1, 2.0, 0.6, 1.7):
            async with started(stage, tmp_path, **settings) as process:
                await asyncio.wait_for(led(process), 30)
                await asyncio.sleep(seconds)
                process.kill()
            await give_the_lease_back(stage)
        async with started(stage, tmp_path, **settings) as process:
            reading = asyncio.create_task(process.communicate())
            for run in all_runs:
                await run.until_phase("Succeeded", bound=60)
                await run.until_settled()
            process.terminate()
            await reading
    finally:
        played.set()
        await playing

    for run in all_runs:
        status = await run.status()
        assert (status["epoch"], status["attempt"]) == (2, 1)
        told = await run.events()
        assert (told.count("run.started"), told.count("harness.lost"), told.count("run.completed")) == (1, 1, 1)
    names = [name for name, _ in pods_made]
    assert sorted(names) == sorted(set(names)), "no name, and so no epoch, was ever given to two pods"
    assert len(names) == 40


async def led(process: Process) -> None:
    """Until the process leads."""
    assert process.stderr is not None
    async for line in process.stderr:
        if b"leadership gained" in line:
            return
    raise AssertionError("it ended before it led")


async def give_the_lease_back(stage: Stage) -> None:
    """As if fifteen seconds had passed: the one who held it is dead."""
    lease = await stage.kube.get(LEASE, stage.system, "towline-operator")
    if lease is not None:
        lease["spec"]["holderIdentity"] = ""
        await stage.kube.replace(lease)
