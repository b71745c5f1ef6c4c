"""Operators come, go, die at any moment, and are two at once: a run never notices."""

import asyncio

import pytest

from tests.control_plane.stage import OwnStore, Stage
from tests.control_plane.test_run import ready_sandbox, working
from towline.controller import leader
from towline.controller.carry_out import Hands
from towline.controller.handlers import Watches
from towline.controller.policies import NETWORK_POLICY
from towline.events.store import Store
from towline.kube.kinds import LEASE


async def test_a_new_operator_goes_on_where_the_last_one_stopped(stage: Stage) -> None:
    first = await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)
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
