"""A run's life against the real API server, its pods played: to each of its ends, through each of its troubles."""

import time

import pytest

from tests.control_plane.stage import Played, Stage
from towline.api.agentrun_status import AgentRunStatus
from towline.events import runs
from towline.kube.kinds import AGENT_TEMPLATE, EVENT, MODEL_PROVIDER, POD, SANDBOX_CLASS
from towline.naming import FINALIZER, feed_key, harness_pod_name, sandbox_name


async def working(stage: Stage, name: str = "hello", **spec: object) -> Played:
    """A run whose first harness runs."""
    run = await stage.run(name, **spec)
    await run.runs(await run.harness())
    await run.until_phase("Running")
    return run


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


async def test_a_finished_run_goes_when_its_time_to_live_is_over(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, ttlSecondsAfterFinished=1)

    await run.completes()
    await run.ends(await run.harness())

    await run.until_gone()

    async def expiring() -> bool:
        return 0 < await stage.store.client.ttl(run.ref.keys.log) <= 3600

    await stage.until(expiring, "its history to expire")


# -- what a run refers to --------------------------------------------------------------------------------------------


async def test_a_missing_template_heals_when_it_appears(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(templateRef={"name": "coder"})
    told = await run.until_condition("Accepted", "False", "TemplateNotFound")
    assert "coder" in told["message"]

    await stage.apply(AGENT_TEMPLATE.name, "coder", {}, namespace=stage.namespace)

    await run.harness()
    await run.until_condition("Accepted", "True")


async def test_a_missing_provider_and_class_heal_when_they_appear(stage: Stage) -> None:
    await stage.started()
    spec = {"model": {"provider": f"p-{stage.tag}"}, "sandboxClassName": f"c-{stage.tag}"}
    await stage.apply(AGENT_TEMPLATE.name, "other", spec, namespace=stage.namespace)
    run = await stage.run(templateRef={"name": "other"})
    await run.until_condition("Accepted", "False", "ProviderNotFound")

    steps = [{"text": "hi"}]
    await stage.apply(MODEL_PROVIDER.name, f"p-{stage.tag}", {"api": "Scripted", "scripted": {"steps": steps}})
    await run.until_condition("Accepted", "False", "SandboxClassNotFound")
    await stage.apply(SANDBOX_CLASS.name, f"c-{stage.tag}", {})

    await run.harness()


async def test_what_does_not_fit_together_is_said_in_full(stage: Stage) -> None:
    await stage.started()

    run = await stage.run(prompt="do {{params.this}} and {{params.that}}")

    told = await run.until_condition("Accepted", "False", "InvalidSpec")
    assert "this" in told["message"]
    assert "that" in told["message"]


async def test_a_class_whose_sandboxes_nobody_here_can_make_is_refused_before_anything_starts(stage: Stage) -> None:
    await stage.started()
    await stage.apply(SANDBOX_CLASS.name, f"c-{stage.tag}", {"provider": "agent-sandbox"})

    run = await stage.run(sandbox={"className": f"c-{stage.tag}"})

    told = await run.until_condition("Accepted", "False", "InvalidSpec")
    assert told["message"] == (
        f'SandboxClass/c-{stage.tag}: spec.provider is "agent-sandbox", which this operator has no adapter for; '
        'expected "pod"'
    )
    await stage.apply(SANDBOX_CLASS.name, f"c-{stage.tag}", {"provider": "pod"})
    await run.harness()


async def test_a_provider_that_is_not_for_the_namespace_is_refused(stage: Stage) -> None:
    await stage.started()
    steps = [{"text": "hi"}]
    await stage.apply(
        MODEL_PROVIDER.name,
        f"p-{stage.tag}",
        {"api": "Scripted", "scripted": {"steps": steps}, "allowedNamespaces": ["elsewhere"]},
    )
    await stage.apply(AGENT_TEMPLATE.name, "t", {"model": {"provider": f"p-{stage.tag}"}}, namespace=stage.namespace)

    run = await stage.run(templateRef={"name": "t"})

    await run.until_condition("Accepted", "False", "NotAllowed")


async def test_a_missing_secret_is_named(stage: Stage) -> None:
    await stage.started()
    provider = {"api": "AnthropicMessages", "models": [{"name": "m"}], "secretRef": {"name": "key"}}
    await stage.apply(MODEL_PROVIDER.name, f"p-{stage.tag}", provider)
    await stage.apply(AGENT_TEMPLATE.name, "t", {"model": {"provider": f"p-{stage.tag}"}}, namespace=stage.namespace)

    run = await stage.run(templateRef={"name": "t"})

    told = await run.until_condition("Accepted", "False", "SecretNotFound")
    assert f'"key" does not exist in {stage.harness}' in told["message"]


async def test_a_later_edit_of_the_template_changes_no_accepted_run(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(suspend=True)
    digest = (await run.until_condition("Accepted", "True")) and (await run.status())["resolved"]["digest"]

    await stage.apply(AGENT_TEMPLATE.name, "default", {"systemPrompt": "other"}, namespace=stage.system)
    await run.change(suspend=False)
    await run.harness()

    assert (await run.status())["resolved"]["digest"] == digest


# -- harness pods ----------------------------------------------------------------------------------------------------


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


# -- sandboxes -------------------------------------------------------------------------------------------------------


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


async def ready_sandbox(stage: Stage, run: Played, generation: int = 1) -> dict[str, object]:
    await run.wants_sandbox()
    pod = await run.sandbox(generation)
    await run.runs(pod)
    await run.until_record("Ready")
    return pod


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


# -- what is written -------------------------------------------------------------------------------------------------


async def test_nothing_is_written_while_nothing_happens(stage: Stage) -> None:
    operator = await stage.started(sweep_seconds=1)
    run = await working(stage)
    await ready_sandbox(stage, run)
    await stage.quiet(operator)
    before, writes = await run.get(), operator.kube.writes

    heartbeat = operator.sweep.heartbeat
    await stage.until(lambda: _later(operator.sweep, heartbeat + 2), "three more sweeps")

    assert operator.kube.writes == writes
    assert await run.get() == before


async def _later(sweep: object, moment: float) -> bool:
    return getattr(sweep, "heartbeat") > moment  # noqa: B009


async def test_counters_are_written_now_and_then_and_conditions_at_once(stage: Stage) -> None:
    operator = await stage.started()
    run = await working(stage)
    await stage.quiet(operator)
    writes, begun = operator.kube.writes, time.monotonic()

    await run.busy(events=100, seconds=3)

    await run.until(lambda status: status.get("toolCalls", 0) == 0 and status["stream"]["lastSeq"] > 100)
    assert operator.kube.writes - writes <= 1 + (time.monotonic() - begun) / 5


async def test_describe_tells_the_story_without_a_word_of_the_prompt(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, prompt="the secret plan")
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded")

    async def told() -> list[str] | None:
        events = await stage.kube.list(EVENT, stage.namespace, fields=f"involvedObject.uid={run.uid}")
        reasons = [each["reason"] for each in sorted(events, key=lambda each: int(each["metadata"]["resourceVersion"]))]
        assert not any("secret plan" in str(each) for each in events)
        return reasons if "Succeeded" in reasons else None

    reasons = await stage.until(told, "the end is told")
    assert reasons == ["Accepted", "HarnessStarted", "Succeeded"]


async def test_the_feed_has_each_lifecycle_event_of_the_log_and_nothing_else(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)
    await run.completes()
    await run.ends(await run.harness())
    await run.no_pods()
    await run.until_settled()

    told = await run.feed()

    lifecycle = [(each.seq, each.type) for each in await run.log() if each.type.startswith(("run.", "sandbox."))]
    assert sorted(set(told)) == sorted([*lifecycle, (0, "sandbox.deleted")])
    assert (await run.state()).unfed == ()
    await run.delete()
    await run.until_gone()


async def test_a_deleted_run_leaves_its_end_in_the_feed(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)

    await run.delete()
    await run.ends(await run.harness(), 11)
    await run.until_gone()

    assert [kind for _, kind in await run.feed()][-1] == "run.cancelled"


async def test_what_an_operator_left_unfed_the_next_one_feeds(stage: Stage) -> None:
    operator = await stage.started()
    run = await working(stage)
    await stage.quiet(operator)
    await stage.halt(operator)
    await run.completes()
    assert [kind for _, kind in await run.feed()] == ["run.started", "run.status"]

    await stage.started()

    await run.until_phase("Succeeded")
    assert [kind for _, kind in await run.feed()] == ["run.started", "run.status", "run.completed"]


async def test_a_feed_that_cannot_be_written_holds_no_run_up(stage: Stage) -> None:
    await stage.store.client.set(feed_key(stage.namespace), "no stream")
    await stage.started()
    run = await working(stage)

    await run.completes()
    await run.ends(await run.harness())

    await run.until_phase("Succeeded")
    await run.until_settled()
    await run.delete()
    await run.until_gone()


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


async def test_a_provider_that_was_deleted_meanwhile_is_said_when_the_next_harness_needs_it(stage: Stage) -> None:
    await stage.started()
    name = f"p-{stage.tag}"
    scripted = {"api": "Scripted", "scripted": {"steps": [{"text": "hi"}]}}
    await stage.apply(MODEL_PROVIDER.name, name, scripted)
    await stage.apply(AGENT_TEMPLATE.name, "t", {"model": {"provider": name}}, namespace=stage.namespace)
    run = await working(stage, templateRef={"name": "t"})

    await stage.kube.delete(MODEL_PROVIDER, None, name)
    await run.ends(await run.harness(), 1)

    await run.until_condition("HarnessReady", "False", "ProviderNotFound")
    await stage.apply(MODEL_PROVIDER.name, name, scripted)
    await run.harness(2)
