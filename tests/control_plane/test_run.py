"""A run's life against the real API server, its pods played, to each of its ends."""

import logging

import pytest

from tests.control_plane.played import working
from tests.control_plane.stage import Stage
from towline import inbox
from towline.api.agentrun_status import AgentRunStatus
from towline.errors import LogClosed
from towline.events import runs
from towline.naming import FINALIZER, harness_pod_name


async def test_a_run_is_accepted_started_and_told_to_be_finished(stage: Stage) -> None:
    await stage.started()

    run = await stage.run()
    pod = await run.harness()
    await run.until_phase("Pending")
    await run.runs(pod)
    status = await run.until_phase("Running")
    assert (status["epoch"], status["harness"]["podName"]) == (1, harness_pod_name(run.uid, 1))
    await run.completes(text="hello there")
    await run.ends(pod)

    status = await run.until_phase("Succeeded")
    assert status["result"]["text"] == "hello there"
    assert (status["turns"], status["usage"]["totalTokens"]) == (1, 15)
    assert status["harness"]["podUID"] == pod["metadata"]["uid"]
    AgentRunStatus.from_wire(status)
    await run.no_pods()
    await run.until_settled()
    assert await run.events() == ["run.started", "harness.started", "turn.started", "run.completed"]
    assert await run.phases() == ["Running"]
    assert await run.pods(stage.sandboxes) == []


async def test_the_finalizer_stands_before_the_pod_and_the_epoch_before_both_store_and_pod(stage: Stage) -> None:
    await stage.started()

    run = await stage.run()
    await run.harness()

    obj = await run.get()
    assert obj is not None
    assert FINALIZER in obj["metadata"]["finalizers"]
    assert obj["status"]["epoch"] == (await run.state()).epoch == 1


async def test_a_failed_run_says_why(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await run.fails("TurnLimitReached", "maxTurns is 3")

    status = await run.until_phase("Failed")
    assert status["failure"] == {"reason": "TurnLimitReached", "message": "maxTurns is 3"}
    assert {each["status"] for each in status["conditions"] if each["type"] == "Finished"} == {"True"}


async def test_cancel_ends_a_run_that_does_not_listen(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await run.change(cancel=True, cancelReason="too slow")

    await run.until_phase("Cancelling")
    assert (await run.state()).cancel == "too slow"
    status = await run.until_phase("Cancelled")
    assert status["failure"]["message"] == "too slow"
    await run.no_pods()
    assert (await run.events())[-1] == "run.cancelled"


async def test_a_harness_that_listens_ends_at_once_and_its_pod_is_kept_for_its_log(stage: Stage) -> None:
    await stage.started(finished_pod_seconds=300)
    run = await working(stage)
    await run.change(cancel=True)
    await run.until_phase("Cancelling")

    await run.ends(await run.harness(), 11)

    await run.until_phase("Cancelled", bound=3)
    await run.until_settled()
    assert [pod["metadata"]["name"] for pod in await run.pods(stage.harness)] == [harness_pod_name(run.uid, 1)]


async def test_a_cancel_by_the_store_counts_as_much(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await runs.request_cancel(stage.store, run.ref, "by towline cancel")
    await run.ends(await run.harness(), 11)

    await run.until_phase("Cancelled", bound=3)


async def test_a_run_that_was_never_accepted_can_be_cancelled(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(templateRef={"name": "nowhere"})
    await run.until_condition("Accepted", "False", "TemplateNotFound")

    await run.change(cancel=True)

    await run.until_phase("Cancelled")
    await run.until_settled()


async def test_suspending_takes_the_pods_away_and_resuming_is_a_new_epoch_but_no_loss(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await run.change(suspend=True)
    await run.until_phase("Suspended")
    await run.no_pods()
    await run.change(suspend=False)

    await run.runs(await run.harness(2))
    status = await run.until_phase("Running")
    assert (status["epoch"], status["attempt"]) == (2, 0)
    assert status["attempts"][-1]["reason"] == "Suspended"
    assert "harness.lost" not in await run.events()


async def test_a_run_that_begins_suspended_has_no_pod(stage: Stage) -> None:
    await stage.started()

    run = await stage.run(suspend=True)

    await run.until_phase("Suspended")
    await run.until_condition("Accepted", "True")
    assert await run.pods(stage.harness) == []
    await run.change(suspend=False)
    await run.harness(1)


async def test_a_deadline_fails_the_run(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, activeDeadlineSeconds=1)
    await run.until_phase("Cancelling")

    await run.ends(await run.harness(), 11)

    status = await run.until_phase("Failed")
    assert status["failure"]["reason"] == "DeadlineExceeded"


async def test_a_finished_run_goes_when_its_time_to_live_is_over(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    operator = await stage.started()
    run = await working(stage, ttlSecondsAfterFinished=1)

    await run.completes()
    await run.ends(await run.harness())

    await run.until_gone()

    async def expiring() -> bool:
        return 0 < await stage.store.client.ttl(run.ref.keys.log) <= 3600

    await stage.until(expiring, "its history to expire")
    await stage.quiet(operator)
    told = [each for each in caplog.records if each.name.startswith("towline.") and each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in told] == []


async def test_an_end_that_the_store_lost_is_written_again_by_a_sweep(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.controller.sweep.FINISHED_EVERY", 1)
    operator = await stage.started(sweep_seconds=1)
    run, other = await working(stage), await working(stage, "other")
    await run.completes(text="42")
    await run.ends(await run.harness())
    await other.change(cancel=True, cancelReason="enough")
    await other.ends(await other.harness(), 11)
    for each in (run, other):
        await each.until_settled()
    await stage.quiet(operator)
    before = await run.status()

    for each in (run, other):
        await each.end_is_lost()

    async def ended() -> bool:
        return (await run.state()).closed == "run.completed" and (await other.state()).closed == "run.cancelled"

    await stage.until(ended, "the ends are there again")
    told = (await run.log())[-1].payload
    assert told["result"] == before["result"]
    assert (told["turns"], told["usage"]["input_tokens"]) == (1, 12)
    assert (await other.log())[-1].payload == {"reason": "enough"}
    assert [kind for kind in await run.events() if kind.startswith("run.")] == ["run.started", "run.completed"]
    with pytest.raises(LogClosed):
        await inbox.post(stage.store, run.ref, "anybody there?", key="k1")
    after = await run.status()
    assert [after[name] for name in ("phase", "completionTime")] == [
        before[name] for name in ("phase", "completionTime")
    ]


async def test_a_spec_of_300_kilobytes_runs_and_goes_like_any_other(stage: Stage) -> None:
    await stage.started()
    files = [{"path": f"f{n}", "content": "x" * 8000} for n in range(16)]
    params = {f"p{n}": "x" * 4000 for n in range(32)}

    run = await working(stage, prompt="x" * 32_000, workspace={"files": files}, params=params)

    spec = await runs.load_spec(stage.store, run.ref)
    assert spec is not None
    assert len(spec) > 150_000
    await run.delete()
    await run.until_gone()
    await run.no_pods()
