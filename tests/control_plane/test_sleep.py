"""A run that people talk to, against the real API server and store: it sleeps without a pod, and wakes when it must."""

import asyncio
import json
import random
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.control_plane.played import Played, ready_sandbox, working
from tests.control_plane.stage import Stage
from towline import inbox
from towline.clock import utc_now
from towline.controller.process import Operator
from towline.events import runs
from towline.events.event import draft
from towline.events.totals import Totals
from towline.exit_codes import HarnessExit
from towline.kube.client import Object
from towline.kube.kinds import AGENT_RUN, CLAIM, POD, SANDBOX_CLASS
from towline.naming import workspace_claim_name


async def answers(run: Played, epoch: int, prompt: str) -> None:
    """One turn, and then the harness waits."""
    log, now = run.appender(epoch), utc_now()
    taken = {"prompt_id": prompt, "content": "hi", "delivery": "queue", "sender": ""}
    started = [draft("turn.started", {"prompt_ids": [prompt]}, now=now), draft("user.message", taken, now=now)]
    await log.append(started, Totals(turns=1, prompts=int(prompt != "0-0")))
    await log.append([draft("turn.completed", {"stop_reason": "end_turn"}, now=now)])
    await log.append([draft("turn.waiting", {"on": "prompt"}, now=utc_now())])


async def falls_asleep(run: Played, epoch: int = 1) -> None:
    await run.ends(await run.harness(epoch), HarnessExit.ASLEEP, "Error")
    await run.until_condition("HarnessReady", "False", "Asleep")
    await run.no_pods()


async def prompted(run: Played, text: str = "and now?", key: str = "k1") -> None:
    await inbox.post(run.stage.store, run.ref, text, key=key)


async def asleep(stage: Stage, name: str = "hello", **spec: object) -> Played:
    run = await working(stage, name, interactive=True, **spec)
    await answers(run, 1, "0-0")
    await run.until_phase("InputRequired")
    await falls_asleep(run)
    return run


async def test_a_waiting_run_sleeps_without_a_pod_and_a_prompt_wakes_it(stage: Stage) -> None:
    await stage.started()
    run = await asleep(stage)

    await prompted(run)

    await run.runs(await run.harness(2, bound=2))
    await run.until_phase("Running")
    await answers(run, 2, "1-0")
    status = await run.until_phase("InputRequired")
    await falls_asleep(run, 2)
    assert (status["attempt"], status["attempts"][0]["reason"]) == (0, "Asleep")
    assert "harness.lost" not in await run.events()
    assert await run.phases() == ["Running", "InputRequired", "Running", "InputRequired"]


async def test_a_prompt_whose_notice_was_lost_wakes_the_run_with_the_next_sweep(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.controller.notices.Ears._one", lambda *_: None)
    await stage.started(sweep_seconds=1)
    run = await asleep(stage)

    await prompted(run)

    await run.harness(2, bound=10)


async def test_nothing_is_written_while_a_run_sleeps(stage: Stage) -> None:
    operator = await stage.started(sweep_seconds=0.2)
    run = await asleep(stage)
    await stage.quiet(operator)
    before, writes, head = await run.get(), operator.kube.writes, (await run.state()).head

    await sweeps(stage, operator, 3)

    assert (operator.kube.writes, (await run.state()).head) == (writes, head)
    assert await run.get() == before


async def sweeps(stage: Stage, operator: Operator, number: int) -> None:
    for _ in range(number):
        begun = time.monotonic()

        async def later(begun: float = begun) -> bool:
            return operator.sweep.heartbeat > begun

        await stage.until(later, "one more sweep")
    await stage.quiet(operator)


async def test_what_happened_while_no_operator_ran_counts_as_if_one_had(stage: Stage) -> None:
    operator = await stage.started()
    run = await working(stage, interactive=True)
    await answers(run, 1, "0-0")
    await run.until_phase("InputRequired")
    await stage.halt(operator)
    pod = await run.harness()
    await run.ends(pod, HarnessExit.ASLEEP, "Error")
    await run.vanishes(pod)

    operator = await stage.started()
    await run.until_condition("HarnessReady", "False", "Asleep")
    await stage.halt(operator)
    await prompted(run)
    await stage.started()

    await run.harness(2)
    assert (await run.until(lambda status: status.get("epoch") == 2))["attempt"] == 0


async def test_it_is_woken_to_finish_for_want_of_a_prompt(stage: Stage) -> None:
    await stage.started()
    run = await asleep(stage, idlePolicy={"suspendAfterSeconds": 1, "finishAfterSeconds": 4})

    await run.runs(await run.harness(2))
    await run.completes(2)
    await run.ends(await run.harness(2))

    await run.until_phase("Succeeded")
    await run.no_pods()


async def test_prompts_do_not_wake_a_suspended_run_and_resuming_does(stage: Stage) -> None:
    operator = await stage.started()
    run = await asleep(stage)
    await run.change(suspend=True)
    await run.until_phase("Suspended")
    await prompted(run)
    await stage.quiet(operator)
    assert await run.pods(stage.harness) == []

    await run.change(suspend=False)

    await run.harness(2)


@pytest.mark.parametrize("state", ["works", "starts a sandbox", "sleeps", "is suspended"])
async def test_a_cancel_ends_the_run_within_five_seconds_whatever_it_does(stage: Stage, state: str) -> None:
    """Its harness hangs, if there is one: it neither hears nor ends."""
    await stage.started()
    if state == "sleeps":
        run = await asleep(stage)
    else:
        run = await working(stage, interactive=True)
    if state == "starts a sandbox":
        await run.wants_sandbox()
        await run.sandbox()
    if state == "is suspended":
        await run.change(suspend=True)
        await run.until_phase("Suspended")
    begun = time.monotonic()

    await run.change(cancel=True, cancelReason="enough")

    await run.until_phase("Cancelled", bound=6)
    assert (await run.events())[-1] == "run.cancelled"
    assert time.monotonic() - begun < 6, "five, and a second for the machine of the test"
    assert sum(kind.startswith("run.") for kind in await run.events()) == 2, "its beginning and one end"
    await run.no_pods()


async def test_the_command_of_a_cancelled_run_goes_with_its_sandbox(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    await ready_sandbox(stage, run)

    await run.change(cancel=True)

    async def going() -> bool:
        pods = await run.pods(stage.sandboxes)
        return all("deletionTimestamp" in pod["metadata"] for pod in pods)

    await stage.until(going, "the sandbox goes", bound=6)


async def test_a_prompt_that_races_with_the_release_of_the_sandbox_gets_a_live_one(stage: Stage) -> None:
    """Whichever comes first: a record that says Ready never names a pod that is going."""
    await stage.started()
    run = await working(stage, interactive=True)
    await answers(run, 1, "0-0")
    chance = random.Random(1)
    for epoch in range(1, 11):
        record = await run.wants_sandbox(f"tc_{epoch}")
        if record.state != "Ready":
            await run.runs(await run.sandbox(record.generation))
            record = await run.until_record("Ready")
        pod = await stage.kube.get(POD, stage.sandboxes, record.name)
        assert pod is not None
        assert "deletionTimestamp" not in pod["metadata"]

        ends = run.ends(await run.harness(epoch), HarnessExit.ASLEEP)
        await asyncio.gather(ends, prompted_after(run, chance.uniform(0, 0.06), f"k{epoch}"))

        await run.runs(await run.harness(epoch + 1))
        await answers(run, epoch + 1, f"{epoch}-0")
    assert (await run.status())["attempt"] == 0


async def prompted_after(run: Played, seconds: float, key: str) -> None:
    await asyncio.sleep(seconds)
    await prompted(run, key=key)


async def test_three_crashes_at_one_event_end_the_run(stage: Stage) -> None:
    await stage.started()
    run = await working(stage)
    await answers(run, 1, "0-0")
    await prompted(run)
    for epoch in (1, 2, 3):
        pod = await run.harness(epoch)
        await run.runs(pod)
        await run.ends(pod, 137, "OOMKilled")

    status = await run.until_phase("Failed")

    progress = next(event.seq for event in await run.log() if event.type == "turn.completed")
    assert status["failure"]["reason"] == "CrashLoop"
    assert f"at event {progress}, " in status["failure"]["message"]
    assert [each["progress"] for each in status["attempts"]] == [progress, progress]


# -- the workspace ---------------------------------------------------------------------------------------------------


async def keeping(stage: Stage, name: str = "hello") -> Played:
    """A run that wants its workspace kept, of a class that can; with a sandbox."""
    of_class = f"kept-{stage.tag}"
    volume = {"size": "1Gi", "storageClassName": "fast"}
    await stage.apply(SANDBOX_CLASS.name, of_class, {"workspace": {"volume": volume}})
    run = await working(stage, name, interactive=True, sandbox={"className": of_class, "retain": "Suspend"})
    await ready_sandbox(stage, run)
    return run


async def claim_of(run: Played) -> Object | None:
    return await run.stage.kube.get(CLAIM, run.stage.sandboxes, workspace_claim_name(run.uid))


async def until_claim_goes(run: Played) -> None:
    """Without a controller manager a claim that was deleted stays to be seen: nobody lifts its protection."""

    async def going() -> bool:
        claim = await claim_of(run)
        return claim is None or "deletionTimestamp" in claim["metadata"]

    await run.stage.until(going, "the claim goes")


async def test_a_workspace_outlives_the_pod_of_a_sleeping_run_and_goes_with_the_run(stage: Stage) -> None:
    await stage.started()
    run = await keeping(stage)
    claim = await claim_of(run)
    assert claim is not None
    assert claim["spec"]["resources"]["requests"] == {"storage": "1Gi"}
    await answers(run, 1, "0-0")
    await run.until_phase("InputRequired")
    await falls_asleep(run)
    await run.until_condition("SandboxReady", "False", "Suspended")
    await run.until_record("Suspended")
    assert (await run.events())[-1] == "sandbox.suspended"

    await prompted(run)
    await run.runs(await run.harness(2))
    spec: Any = (await ready_sandbox(stage, run, 2))["spec"]

    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    kept = await claim_of(run)
    assert kept is not None
    assert kept["metadata"]["uid"] == claim["metadata"]["uid"]
    assert "deletionTimestamp" not in kept["metadata"]
    await run.completes(2)
    await run.ends(await run.harness(2))
    await run.until_settled()
    await until_claim_goes(run)


async def test_a_deleted_run_takes_its_workspace_along_and_one_that_vanished_leaves_it_to_the_reaper(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towline.controller.sweep.FINISHED_EVERY", 1)
    await stage.started(sweep_seconds=1)
    run = await keeping(stage)
    await run.delete()
    await run.ends(await run.harness(), HarnessExit.STOPPED)
    await run.until_gone()
    await until_claim_goes(run)

    other = await keeping(stage, "other")
    await stage.kube.patch_metadata(AGENT_RUN, stage.namespace, "other", {"finalizers": []})
    await other.delete()

    await until_claim_goes(other)


async def test_without_a_volume_the_sandbox_is_released_and_the_condition_says_what_is_missing(stage: Stage) -> None:
    await stage.started()
    run = await working(stage, interactive=True, sandbox={"retain": "Suspend"})
    await ready_sandbox(stage, run)
    await answers(run, 1, "0-0")
    await run.until_phase("InputRequired")
    await falls_asleep(run)

    told = await run.until_condition("SandboxReady", "False", "Released")

    assert told["message"].endswith("SandboxClass default has no workspace.volume to keep it in")
    assert await claim_of(run) is None


# -- a run that begins with the history of another -------------------------------------------------------------------


async def test_the_run_to_continue_from_is_found_by_name_and_kept_by_uid(stage: Stage) -> None:
    await stage.started()
    source = await working(stage, "source")
    await source.completes()

    run = await stage.run("next", continueFrom={"name": "source", "seq": 2})

    await run.harness()
    spec = await runs.load_spec(stage.store, run.ref)
    assert spec is not None
    told = json.loads(spec)["continueFrom"]
    assert told == {"namespace": stage.namespace, "uid": source.uid, "seq": 2}


async def test_a_source_that_does_not_exist_is_said_and_heals(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.controller.plan.MISSING_RECHECK", timedelta(seconds=1))
    await stage.started()
    run = await stage.run("next", continueFrom={"name": "source"})
    told = await run.until_condition("Accepted", "False", "SourceNotFound")
    expected = f"expected an AgentRun that exists in {stage.namespace}"
    assert told["message"] == f'spec.continueFrom.name is "source"; {expected}'
    itself = await stage.run("itself", continueFrom={"name": "itself"})
    told = await itself.until_condition("Accepted", "False", "SourceNotFound")
    assert "another run" in told["message"]

    await working(stage, "source")

    await run.harness()


async def test_a_seq_beyond_the_last_event_of_the_source_is_refused(stage: Stage) -> None:
    await stage.started()
    source = await working(stage, "source")
    await source.completes()

    run = await stage.run("next", continueFrom={"name": "source", "seq": 99})

    told = await run.until_condition("Accepted", "False", "InvalidSpec")
    assert told["message"].startswith("spec.continueFrom.seq is 99; expected at most ")


async def test_a_seq_before_the_first_kept_event_of_the_source_is_refused(stage: Stage) -> None:
    await stage.started()
    source = await working(stage, "source")
    await source.completes()
    assert await runs.trim(stage.store, source.ref, 3, above=0) == 2

    run = await stage.run("next", continueFrom={"name": "source", "seq": 2})

    told = await run.until_condition("Accepted", "False", "InvalidSpec")
    expected = 'expected at least 3, the first event of "source" that is kept'
    assert told["message"] == f"spec.continueFrom.seq is 2; {expected}"
