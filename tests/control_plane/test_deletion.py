"""Deleting a run removes everything of it, whatever else is broken."""

import logging
from datetime import timedelta

import pytest

from tests.control_plane.played import Played, ready_sandbox, working
from tests.control_plane.stage import Stage
from towline.controller.tell_store import HISTORY_SECONDS
from towline.kube.kinds import AGENT_RUN, NAMESPACE, POD
from towline.naming import harness_key, harness_pod_name

SECOND = timedelta(seconds=1)
NOWHERE = "redis://127.0.0.1:1"


async def test_a_working_run_is_cancelled_then_removed_with_its_pods(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)

    await run.delete()
    await run.until_gone()

    await run.no_pods()
    assert (await run.events())[-1] == "run.cancelled"
    assert 0 < await stage.store.client.ttl(run.ref.keys.log) <= HISTORY_SECONDS
    assert not await stage.store.client.exists(harness_key(harness_pod_name(run.uid, 1)))


async def test_a_run_that_waits_for_its_template_goes_at_once(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(templateRef={"name": "nowhere"})
    await run.until_condition("Accepted", "False")

    await run.delete()

    await run.until_gone(bound=2)


def reaped(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level of each removal by the reaper, and what the pod was."""
    records = [each for each in caplog.records if each.message == "pod of a deleted run removed"]
    return [(each.levelname, each.__dict__["fields"]["was"]) for each in records]


async def test_a_finished_run_goes_at_once_and_its_kept_pod_with_the_next_sweep(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await stage.started(finished_pod_seconds=300, sweep_seconds=1)
    run = await working(stage)
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded")
    await run.until_settled()
    assert await run.pods(stage.harness)

    await run.delete()
    await run.until_gone(bound=2)

    await run.no_pods()
    assert reaped(caplog) == [("INFO", "Completed, exit code 0")], "no surprise"


async def test_deletion_needs_no_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.controller.plan_end.STORE_PATIENCE", SECOND)
    first = await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)
    await stage.halt(first)
    await stage.started(redis_url=NOWHERE)

    await run.delete()

    await run.until_gone()
    await run.no_pods()


async def test_a_run_deleted_while_the_operator_was_down_goes_when_it_is_back(stage: Stage) -> None:
    first = await stage.started()
    run = await working(stage)
    await stage.halt(first)

    await run.delete()
    await stage.started()

    await run.until_gone()
    await run.no_pods()


async def test_a_pod_that_hangs_in_terminating_is_forced_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.controller.plan_pods.OVERDUE", SECOND)
    await stage.started()
    run = await scheduled(stage)

    await run.delete()

    await run.until_gone()
    await run.no_pods()


async def scheduled(stage: Stage, name: str = "hello") -> Played:
    """A run whose pod is bound to a node without a kubelet: a graceful deletion never ends."""
    run = await stage.run(name)
    pod = await run.harness()
    await stage.bind(pod, "nowhere")
    await run.runs(pod)
    await run.until_phase("Running")
    return run


async def test_a_finalizer_of_somebody_else_on_a_pod_holds_nothing_up_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.controller.plan_pods.OVERDUE", SECOND)
    monkeypatch.setattr("towline.controller.plan_end.OVERDUE", SECOND)
    monkeypatch.setattr("towline.controller.plan_end.LET_GO", SECOND)
    await stage.started()
    run = await working(stage)
    pod = await run.harness()
    await stage.kube.patch_metadata(POD, stage.harness, pod["metadata"]["name"], {"finalizers": ["example.org/mine"]})

    await run.delete()
    await run.until_gone()

    await stage.kube.patch_metadata(POD, stage.harness, pod["metadata"]["name"], {"finalizers": []})
    await run.no_pods()


async def test_a_run_of_the_same_name_created_within_a_second_gets_pods_of_its_own(stage: Stage) -> None:
    await stage.started()
    first = await working(stage)
    pod = await first.harness()

    await first.delete()
    await first.until_gone()
    second = await stage.run()

    assert second.uid != first.uid
    other = await second.harness()
    assert other["metadata"]["name"] != pod["metadata"]["name"]
    await second.runs(other)
    await second.until_phase("Running")
    assert await second.events() == ["run.started"]
    await first.no_pods()


async def test_a_name_that_comes_back_while_the_operator_is_down_is_another_run(stage: Stage) -> None:
    operator = await stage.started()
    first = await working(stage)
    await stage.halt(operator)
    await stage.kube.patch_metadata(AGENT_RUN, stage.namespace, first.name, {"finalizers": []})
    await first.delete()
    await first.until_gone()
    second = await stage.run()

    await stage.started(sweep_seconds=1)

    await second.harness()
    await first.no_pods()  # an orphan by then: the reaper's
    assert (await second.status())["epoch"] == 1


async def test_pods_whose_run_is_gone_are_reaped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await stage.started(sweep_seconds=1)
    run = await working(stage)
    await ready_sandbox(stage, run)

    await stage.kube.patch_metadata(AGENT_RUN, stage.namespace, run.name, {"finalizers": []})
    await run.delete()

    await run.until_gone()
    await run.no_pods()
    assert ("WARNING", "alive") in reaped(caplog)


async def test_a_labelled_pod_that_is_not_ours_is_left_alone(stage: Stage) -> None:
    await stage.started(sweep_seconds=1)
    run = await working(stage)
    pod = await run.harness()
    container = {"name": "x", "image": "localhost/none:1"}
    metadata = {"namespace": stage.harness, "name": "debugger", "labels": pod["metadata"]["labels"]}
    await stage.kube.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    )

    await run.delete()
    await run.until_gone()

    async def only_it() -> bool:
        return [each["metadata"]["name"] for each in await run.pods(stage.harness)] == ["debugger"]

    await stage.until(only_it, "only the foreign pod is left")


async def test_a_namespace_with_live_runs_can_be_deleted(stage: Stage) -> None:
    await stage.started()
    run, waiting = await working(stage), await stage.run("waiting", templateRef={"name": "nowhere"})
    await waiting.until_condition("Accepted", "False")

    await stage.kube.delete(NAMESPACE, None, stage.namespace)
    for each in (run, waiting):  # the namespace controller's part
        await each.delete()

    await run.until_gone()
    await waiting.until_gone()
    await run.no_pods()


async def test_the_finished_history_of_a_run_deleted_by_hand_is_let_go(stage: Stage) -> None:
    operator = await stage.started()
    run = await working(stage)
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded")
    await run.until_settled()
    await run.delete()
    await run.until_gone()

    for _ in range(2):
        await operator.sweep.reaper.histories()

    assert 0 < await stage.store.client.ttl(run.ref.keys.meta) <= HISTORY_SECONDS
