"""Sandboxes are made when they are wanted, told when they are ready, and followed by another when they are gone."""

import pytest

from tests.control_plane.played import ready_sandbox, working
from tests.control_plane.stage import Stage
from towline.kube.kinds import POD, SANDBOX_CLASS
from towline.naming import sandbox_name


async def test_a_sandbox_is_made_when_a_call_wants_it_and_not_before(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    assert await run.pods(stage.sandboxes) == []
    await run.until_condition("SandboxReady", "False", "NotRequested")

    await run.wants_sandbox()
    pod = await run.sandbox()
    await run.until_condition("SandboxReady", "False", "Starting")
    await run.runs(pod, ip="10.9.8.7")

    record = await run.until_record("Ready")
    assert record.address == "http://10.9.8.7:8080"
    await run.until_condition("SandboxReady", "True", "Ready")
    status = await run.status()
    assert status["sandbox"]["name"] == record.name
    assert status["sandbox"]["requestedAt"] <= status["sandbox"]["readyAt"]
    assert (await run.events())[-1] == "sandbox.ready"


async def test_a_dead_sandbox_is_told_and_the_next_call_gets_another(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    pod = await ready_sandbox(stage, run)

    await run.ends(pod, 137, "OOMKilled")

    record = await run.until_record("Lost")
    assert record.reason == "OOMKilled"
    await run.until_condition("SandboxReady", "False", "Lost")
    second = await ready_sandbox(stage, run, 2)
    assert [each["metadata"]["name"] for each in await run.pods(stage.sandboxes)] == [second["metadata"]["name"]]


async def test_a_sandbox_deleted_by_hand_is_told(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    pod = await ready_sandbox(stage, run)

    await run.vanishes(pod)

    assert (await run.until_record("Lost")).reason == "Deleted"


async def test_an_evicted_sandbox_is_told(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    pod = await ready_sandbox(stage, run)

    await run.play(pod, phase="Failed", reason="Evicted", message="Usage of EmptyDir volume exceeds the limit")

    record = await run.until_record("Lost")
    assert record.reason == "Evicted"
    assert "EmptyDir" in record.message


@pytest.mark.parametrize(
    ("code", "container", "by_node", "told"),
    [
        (1, "Error", "", "Exited"),
        (137, "Error", "", "Killed"),
        (137, "OOMKilled", "", "OOMKilled"),
        (137, "Error", "Evicted", "Evicted"),
        (137, "Error", "NodeLost", "NodeLost"),
        (137, "Error", "DeadlineExceeded", "DeadlineExceeded"),
    ],
)
async def test_whatever_takes_a_sandbox_is_told_and_followed_by_another(
    stage: Stage, code: int, container: str, by_node: str, told: str
) -> None:
    await stage.started()
    run = await working(stage)

    await run.ends(await ready_sandbox(stage, run), code, container, by_node=by_node)

    assert (await run.until_record("Lost")).reason == told
    await ready_sandbox(stage, run, 2)
    assert [event.payload["reason"] for event in await run.log() if event.type == "sandbox.lost"] == [told]
    assert (await run.status())["phase"] == "Running"


async def test_a_sandbox_that_cannot_be_scheduled_fails_at_its_deadline(stage: Stage) -> None:
    await stage.apply(SANDBOX_CLASS.name, f"quick-{stage.tag}", {"startTimeoutSeconds": 2})
    await stage.started()
    run = await working(stage, sandbox={"className": f"quick-{stage.tag}"})
    await run.wants_sandbox()
    pod = await run.sandbox()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    await run.play(pod, phase="Pending", conditions=[unscheduled])
    await run.until_condition("SandboxReady", "False", "Unschedulable")

    record = await run.until_record("Failed")

    assert record.reason == "Unschedulable"
    assert "0/2 nodes" in record.message
    await run.until_condition("SandboxReady", "False", "StartFailed")


async def test_a_quota_that_has_no_room_for_the_sandbox_fails_it_at_its_deadline(stage: Stage) -> None:
    await stage.apply(SANDBOX_CLASS.name, f"quick-{stage.tag}", {"startTimeoutSeconds": 2})
    await stage.quota(stage.sandboxes, 0)
    await stage.started()
    run = await working(stage, sandbox={"className": f"quick-{stage.tag}"})

    await run.wants_sandbox()
    await run.until_condition("SandboxReady", "False", "QuotaExceeded")

    assert (await run.until_record("Failed")).reason == "QuotaExceeded"


async def test_an_unproved_sandbox_takes_no_call(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    await run.wants_sandbox()
    pod = await run.sandbox()

    await run.ends(pod, 78)

    record = await run.until_record("Failed")
    assert record.reason == "PolicyNotEnforced"
    await run.until_condition("SandboxReady", "False", "PolicyNotEnforced")


async def test_an_eager_run_has_its_sandbox_before_the_first_call(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(sandbox={"policy": "Eager"})

    await run.runs(await run.sandbox())

    assert (await run.until_record("Ready")).generation == 1


async def test_the_end_of_a_run_takes_its_sandbox(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)

    await run.completes()
    await run.ends(await run.harness())

    await run.until_phase("Succeeded")
    await run.no_pods()
    await run.until_condition("SandboxReady", "False", "Released")
    await run.until_record("Deleted")


async def test_a_foreign_pod_with_the_name_of_a_sandbox_is_left_alone_and_the_call_is_told(stage: Stage) -> None:
    await stage.apply(SANDBOX_CLASS.name, f"quick-{stage.tag}", {"startTimeoutSeconds": 2})
    await stage.started()
    run = await working(stage, sandbox={"className": f"quick-{stage.tag}"})
    foreign = await stage.foreign_pod(stage.sandboxes, sandbox_name(run.uid, 1))

    await run.wants_sandbox()

    await run.until_condition("SandboxReady", "False", "NameTaken")
    assert (await run.until_record("Failed")).reason == "NameTaken"
    left = await stage.kube.get(POD, stage.sandboxes, foreign["metadata"]["name"])
    assert left is not None
    assert left["metadata"]["uid"] == foreign["metadata"]["uid"]
    await ready_sandbox(stage, run, 2)
