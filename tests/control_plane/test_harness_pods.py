"""The pods of the harness end in every way there is: what is counted, what is replaced, what is said."""

import pytest

from tests.control_plane.played import working
from tests.control_plane.stage import Stage
from towline.events.pods import HarnessPod, harness_of
from towline.kube.kinds import POD
from towline.naming import harness_key, harness_pod_name


async def test_a_crash_is_a_new_epoch_and_an_event(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await run.ends(await run.harness(), 137, "OOMKilled")

    await run.runs(await run.harness(2))
    status = await run.until_phase("Running")
    assert (status["epoch"], status["attempt"], status["harness"]["restarts"]) == (2, 1, 1)
    assert status["attempts"][0]["reason"] == "OOMKilled"
    lost = next(event for event in await run.log() if event.type == "harness.lost")
    assert lost.payload == {"epoch": 1, "reason": "OOMKilled", "exit_code": 137, "signal": 9}
    assert lost.epoch == 2


async def test_a_pod_deleted_without_grace_is_replaced_and_not_counted(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, backoffLimit=0)

    await run.vanishes(await run.harness())

    await run.harness(2)
    status = await run.until(lambda status: status.get("epoch") == 2)
    assert status["attempt"] == 0


async def test_an_evicted_harness_is_replaced_and_not_counted(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, backoffLimit=0)

    await run.play(await run.harness(), phase="Failed", reason="Evicted", message="The node was low on memory.")

    await run.harness(2)
    assert (await run.until(lambda status: status.get("epoch") == 2))["attempts"][0]["reason"] == "Evicted"


async def test_a_harness_that_the_store_has_forgotten_is_registered_again(stage: Stage) -> None:
    """A failover loses it beside a run that is whole; then the gateway would know the harness no more."""
    await stage.started()
    run = await stage.run("hello", backoffLimit=0)
    pod = await run.harness()
    name = pod["metadata"]["name"]
    assert await stage.store.client.delete(harness_key(name)) == 1

    await run.runs(pod)

    async def registered() -> HarnessPod | None:
        return await harness_of(stage.store, name)

    known = await stage.until(registered, "the gateway knows the harness")
    assert (known.run, known.epoch) == (run.ref, 1)
    assert (await run.status()).get("attempt", 0) == 0


@pytest.mark.parametrize("cause", ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager"])
async def test_a_disturbed_harness_is_replaced_and_nobody_takes_it_for_a_cancel(stage: Stage, cause: str) -> None:
    """A drain, a preemption, a node that is lost: it has heard SIGTERM, and ended as one told to stop."""
    await stage.started()
    run = await working(stage, backoffLimit=0)

    disturbed = {"type": "DisruptionTarget", "status": "True", "reason": cause}
    await run.ends(await run.harness(), 11, "Error", conditions=[disturbed])

    await run.runs(await run.harness(2))
    status = await run.until_phase("Running")
    assert (status["attempt"], status["attempts"][0]["reason"]) == (0, cause)
    assert (await run.state()).cancel is None


async def test_crashes_beyond_the_limit_fail_the_run(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, backoffLimit=1)

    await run.ends(await run.harness(1), 1)
    await run.ends(await run.harness(2), 1)

    status = await run.until_phase("Failed")
    assert status["failure"]["reason"] == "BackoffLimitExceeded"
    assert "exit code 1" in status["failure"]["message"]
    await run.no_pods()


async def test_a_harness_that_cannot_seal_itself_is_not_tried_again(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await run.ends(await run.harness(), 13)

    assert (await run.until_phase("Failed"))["failure"]["reason"] == "SealFailed"


async def test_no_node_for_the_harness_is_said_and_heals(stage: Stage) -> None:
    await stage.started()
    run = await stage.run()
    pod = await run.harness()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}

    await run.play(pod, phase="Pending", conditions=[unscheduled])

    told = await run.until_condition("HarnessReady", "False", "Unschedulable")
    assert told["message"] == "0/2 nodes"
    await run.runs(pod)
    await run.until_phase("Running")


async def test_an_image_that_cannot_be_pulled_is_said(stage: Stage) -> None:
    await stage.started()
    run = await stage.run()
    pod = await run.harness()

    await run.waits(pod, "ImagePullBackOff", "Back-off pulling image")

    await run.until_condition("HarnessReady", "False", "ImagePullFailed")


async def test_a_used_up_quota_is_said_and_heals(stage: Stage) -> None:
    await stage.quota(stage.harness, 0)
    await stage.started()
    run = await stage.run()
    told = await run.until_condition("HarnessReady", "False", "QuotaExceeded")
    assert "exceeded quota" in told["message"]

    await stage.quota(stage.harness, 10)

    await run.harness(1)


async def test_a_foreign_pod_with_our_name_is_neither_adopted_nor_deleted(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(suspend=True)
    await run.until_phase("Suspended")
    foreign = await stage.foreign_pod(stage.harness, harness_pod_name(run.uid, 1))

    await run.change(suspend=False)

    await run.until_condition("HarnessReady", "False", "NameTaken")
    await run.delete()
    await run.until_gone()
    left = await stage.kube.get(POD, stage.harness, foreign["metadata"]["name"])
    assert left is not None
    assert left["metadata"]["uid"] == foreign["metadata"]["uid"]
