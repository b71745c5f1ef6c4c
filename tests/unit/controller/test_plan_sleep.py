"""A run that waits for a prompt: it has no pod, and whatever gives it something to do wakes it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.unit.controller.world import FACTS, FIRST, NEXT, POD, SECOND, UID, World, actions, with_sandbox, working
from towline.controller.actions import (
    CreateHarness,
    DeletePod,
    Finish,
    Grant,
    MarkSandboxDeleted,
    MarkSandboxLost,
    MarkSandboxSuspended,
    RaiseEpoch,
)
from towline.controller.status import status_of
from towline.exit_codes import HarnessExit
from towline.kube.pod_status import Ended, Trouble
from towline.naming import FINALIZER, harness_pod_name


def asleep(world: World | None = None) -> World:
    """It has answered, nobody has prompted it, and its harness is gone."""
    world = world or working()
    world.waits()
    world.settle()
    world.ends(POD, HarnessExit.ASLEEP)
    world.settle()
    return world


def said(world: World, kind: str) -> tuple[str, str]:
    return next((each["status"], each["reason"]) for each in world.run.conditions if each["type"] == kind)


def test_a_sleeping_run_has_no_pod_and_waits_for_a_person() -> None:
    world = asleep(with_sandbox())
    world.passes(11)
    world.settle()

    assert world.pods == {}
    assert world.run.status["phase"] == "InputRequired"
    assert said(world, "HarnessReady") == ("False", "Asleep")
    assert said(world, "InputRequired") == ("True", "PromptAwaited")
    assert world.run.condition("InputRequired")["message"].endswith('next prompt: towline prompt -n team hello "…"')
    assert said(world, "SandboxReady") == ("False", "Released")
    assert (world.run.crashes, world.plan().actions, world.plan().look_again) == (0, [], None)


def test_the_status_tells_of_the_sleep_before_the_pod_goes() -> None:
    """Else an operator killed in between would take it for lost."""
    world = working()
    world.waits()
    world.ends(POD, HarnessExit.ASLEEP)
    assert actions(world) == []
    world.reconcile()

    assert actions(world) == [DeletePod(POD, (world.pods.get(POD) and world.pods[POD].uid) or "", harness=True)]


def test_a_prompt_wakes_it_at_once_and_that_is_no_loss() -> None:
    world = asleep()
    for _ in range(5):  # however often it slept in the last minutes
        world.is_prompted()
        epoch = world.run.epoch + 1
        assert actions(world) == [Grant(epoch, Ended(reason="Asleep")), RaiseEpoch(epoch), CreateHarness(epoch)]
        world.settle()
        assert world.run.status["phase"] == "Running"
        assert said(world, "HarnessReady") == ("False", "Waking")
        world.starts(world.harness)
        world.works()
        world.settle()
        world.works()
        world.settle()

    assert world.run.status["phase"] == "InputRequired"
    assert world.run.crashes == 0
    assert {each["reason"] for each in world.run.status["attempts"]} == {"Asleep"}


@pytest.mark.parametrize("away", [lambda w: setattr(w, "store_away", True), lambda w: w.store_is_emptied()])
def test_a_run_that_is_prompted_after_its_store_was_away_still_knows_that_it_slept(
    away: Callable[[World], None],
) -> None:
    world = asleep()
    world.passes(11)
    world.settle()
    state, last = world.state, world.last
    away(world)
    world.settle()
    assert said(world, "HarnessReady") == ("False", "Asleep")
    assert world.run.status["phase"] == "InputRequired"

    world.store_away, world.stored, world.state, world.last = False, True, state, last
    world.is_prompted()

    assert actions(world)[0] == Grant(2, Ended(reason="Asleep"))


def test_at_no_moment_is_a_waking_run_said_to_restart() -> None:
    world = asleep()
    world.passes(11)
    world.settle()
    world.is_prompted()
    told = [reason_of(world)]
    world.reconcile(dies_before=1)  # granted, and no pod yet
    told.append(reason_of(world))
    world.settle()
    told.append(reason_of(world))

    assert told == [("False", "Waking")] * 3


def reason_of(world: World) -> tuple[str, str]:
    """Of HarnessReady, as it would be written now."""
    status = status_of(world.seen())
    return next((each["status"], each["reason"]) for each in status["conditions"] if each["type"] == "HarnessReady")


def test_a_prompt_that_comes_while_the_harness_falls_asleep_is_not_slept_through() -> None:
    world = working()
    world.waits()
    world.settle()
    world.is_prompted()
    world.ends(POD, HarnessExit.ASLEEP)

    assert CreateHarness(2) in actions(world)
    assert Grant(2, Ended(reason="Asleep", at=world.now)) in actions(world)


def test_naps_do_not_delay_what_follows_a_loss() -> None:
    world = asleep()
    for _ in range(5):
        world.is_prompted()
        world.settle()
        world.starts(world.harness)
        world.works()
        world.settle()
        world.works()
        world.settle()
    world.is_prompted()
    world.settle()
    world.starts(world.harness)
    world.takes_a_turn()
    world.settle()

    world.ends(world.harness, 137, "Evicted", True)

    assert isinstance(actions(world)[0], Grant)


def test_harnesses_that_wake_in_vain_do_not_come_one_after_the_other() -> None:
    """A prompt that is counted and cannot be found: a fault of ours, which must not cost a pod a second."""
    world = asleep()
    world.is_prompted()
    world.settle()
    world.starts(NEXT)
    world.settle()
    world.ends(NEXT, HarnessExit.ASLEEP)

    made = world.plan()

    assert (made.actions, made.look_again) == ([], timedelta(seconds=1))


@pytest.mark.parametrize("ends", [lambda w: w.vanishes(POD), lambda w: w.ends(POD, 137, "Evicted", True)])
def test_whatever_takes_the_pod_of_a_waiting_run_needs_no_successor(ends) -> None:  # type: ignore[no-untyped-def]
    world = working()
    world.waits()
    world.settle()

    ends(world)
    world.settle()

    assert world.made == [POD]
    assert said(world, "HarnessReady") == ("False", "Asleep")


def test_a_crash_while_it_waits_counts_once_there_is_something_to_do_again() -> None:
    world = working()
    world.facts = replace(FACTS, backoff_limit=0)
    world.waits()
    world.settle()
    world.ends(POD, 1)
    world.settle()
    assert list(world.pods) == [POD], "its log is all there is to see of it"

    world.is_prompted()

    (finish,) = actions(world)
    assert isinstance(finish, Finish)
    assert finish.reason == "BackoffLimitExceeded"


def test_it_is_woken_to_finish_when_nobody_has_prompted_it_for_long_enough() -> None:
    world = working()
    world.facts = replace(FACTS, finish_after_seconds=90)
    asleep(world)
    assert world.plan().look_again == timedelta(seconds=90)
    world.passes(90)
    world.settle()
    world.starts(NEXT)
    world.works()
    world.passes(10)
    world.settle()

    assert world.run.status["phase"] == "Succeeded"


def test_a_prompt_does_not_wake_a_suspended_run_and_the_end_of_its_suspension_does() -> None:
    world = asleep()
    world.set(suspend=True)
    world.settle()
    world.is_prompted()
    world.settle()
    assert world.run.status["phase"] == "Suspended"
    assert world.made == [POD]

    world.set(suspend=False)
    world.settle()

    assert world.made == [POD, NEXT]


def test_a_run_that_was_suspended_while_it_waited_goes_on_waiting() -> None:
    world = working()
    world.waits()
    world.set(suspend=True)
    world.settle()
    world.passes(20)
    world.settle()
    world.set(suspend=False)
    world.settle()

    assert world.run.status["phase"] == "InputRequired"
    assert said(world, "Suspended") == ("False", "NotSuspended")
    assert world.pods == {}


def test_a_suspended_run_says_so_first_whatever_else_it_waits_for() -> None:
    """`kubectl get` shows the reason beside the phase: no prompt wakes a suspended run."""
    world = working()
    world.waits()
    world.settle()
    world.set(suspend=True)
    world.reconcile()
    assert said(world, "HarnessReady") == ("False", "Released"), "its pod is going, and nothing follows"
    assert said(world, "Succeeded") == ("Unknown", "UserRequested")

    world.passes(20)
    world.settle()

    assert world.run.status["phase"] == "Suspended"
    assert said(world, "InputRequired") == ("True", "PromptAwaited")
    assert said(world, "Succeeded") == ("Unknown", "UserRequested")

    world.is_prompted()
    world.set(suspend=False)
    assert reason_of(world) == ("False", "Waking")


def test_sleep_does_not_count_towards_the_deadline() -> None:
    world = working()
    world.facts = replace(FACTS, active_deadline_seconds=60)
    world.passes(30)
    asleep(world)
    world.passes(10_000)
    world.settle()
    world.is_prompted()
    world.settle()
    world.passes(29)
    world.settle()
    assert world.run.status["phase"] == "Running"
    world.passes(1)
    world.settle()

    assert world.run.status["phase"] == "Cancelling"


def test_a_wait_that_nobody_looked_at_counts_from_its_beginning() -> None:
    """The operator was away: only the store knows since when the run has been waiting."""
    world = working()
    world.facts = replace(FACTS, active_deadline_seconds=60)
    world.passes(30)
    world.waits()
    world.ends(POD, HarnessExit.ASLEEP)
    world.passes(10_000)
    world.operator_dies()

    world.settle()

    assert world.run.status["phase"] == "InputRequired"
    assert world.run.status["pausedSince"] == "2026-11-29T12:00:30Z"
    world.is_prompted()
    world.settle()
    assert world.run.status["pausedSeconds"] == 10_000
    world.passes(30)
    world.settle()
    assert world.run.status["phase"] == "Cancelling"


def test_a_deadline_does_not_pass_while_a_wait_cannot_be_written_down() -> None:
    """The API server is away: what the store can be told follows from the run as it was."""
    world = working()
    world.facts = replace(FACTS, active_deadline_seconds=60)
    world.passes(30)
    world.waits()

    world.passes(10_000)

    made = world.plan()
    assert (made.actions, made.look_again) == ([], None)


def test_a_sleeping_run_is_cancelled_at_once() -> None:
    world = asleep()
    world.set(cancel=True, cancel_reason="enough")

    assert Finish(2, "Cancelled", "enough") in actions(world)
    world.settle()
    assert world.run.status["phase"] == "Cancelled"


def test_a_pod_that_hangs_on_a_dead_node_while_the_run_waits_is_forced_out_and_not_replaced() -> None:
    world = working()
    world.waits()
    world.settle()
    stuck = replace(world.pods.pop(POD), deadline=world.now)
    world.pods[POD] = stuck
    world.now += timedelta(seconds=30)

    world.settle()

    assert world.pods == {}
    assert world.made == [POD]


def test_the_phases_are_told_to_the_log_once_each() -> None:
    world = asleep()
    world.is_prompted()
    world.settle()
    world.starts(NEXT)
    world.works()
    world.settle()

    assert world.phases == ["Running", "InputRequired", "Running", "InputRequired"]


def test_the_sandbox_of_a_sleeping_run_is_released_before_anything_else_wants_it() -> None:
    world = with_sandbox()
    world.waits()
    world.ends(POD, HarnessExit.ASLEEP)

    assert actions(world)[-2:] == [
        MarkSandboxDeleted(FIRST),
        DeletePod(FIRST, world.pods[FIRST].uid, harness=False),
    ]
    assert harness_pod_name(UID, 1) in world.pods


KEEPING = replace(FACTS, keeps_workspace=True)


def test_a_sandbox_whose_workspace_is_kept_is_suspended_and_followed_by_one_that_has_it() -> None:
    world = with_sandbox()
    world.facts = KEEPING
    world.workspace = True
    world.waits()
    world.ends(POD, HarnessExit.ASLEEP)
    assert MarkSandboxSuspended(FIRST) in actions(world)
    world.settle()
    assert said(world, "SandboxReady") == ("False", "Suspended")
    world.passes(11)

    world.is_prompted()
    world.settle()
    world.starts(NEXT)
    world.wants()
    world.settle()
    world.starts(SECOND)
    world.settle()

    assert (world.record.state, world.record.name, world.workspace) == ("Ready", SECOND, True)


def test_the_workspace_goes_with_the_run_and_its_sandbox_is_told_to_be_gone() -> None:
    world = asleep(with_sandbox())
    world.facts = KEEPING
    world.record = replace(world.record, state="Suspended")
    world.workspace = True
    world.set(cancel=True)
    world.settle()
    world.passes(20)
    world.settle()

    assert not world.workspace
    assert world.record.state == "Deleted"
    assert FINALIZER not in world.run.finalizers


def test_a_class_without_a_volume_cannot_keep_a_workspace_and_the_condition_says_so() -> None:
    world = with_sandbox()
    world.facts = replace(FACTS, lacks_volume="default")
    asleep(world)

    told = world.run.condition("SandboxReady")

    assert told["reason"] == "Released"
    assert told["message"] == (
        "the workspace went with the pod: SandboxClass default has no workspace.volume to keep it in"
    )


@pytest.mark.parametrize(
    ("storage_class", "named"), [("fast", "StorageClass fast"), ("", "the cluster's default StorageClass")]
)
def test_a_claim_that_nobody_binds_is_told_with_its_storage_class_until_the_start_is_given_up(
    storage_class: str, named: str
) -> None:
    world = working()
    world.facts = replace(KEEPING, storage_class=storage_class)
    world.wants()
    world.settle()
    world.pods[FIRST] = replace(world.pods[FIRST], trouble=Trouble("VolumeNotBound", "no volume for it"))
    world.settle()
    assert said(world, "SandboxReady") == ("False", "VolumeNotBound")
    assert world.run.condition("SandboxReady")["message"] == f"no volume for it ({named})"
    assert said(world, "Succeeded") == ("Unknown", "VolumeNotBound"), "which kubectl get shows beside the phase"

    world.passes(60)

    message = f"not started within 60 s: no volume for it ({named})"
    assert actions(world)[0] == MarkSandboxLost(FIRST, 1, "Failed", "VolumeNotBound", message)


def test_what_only_the_kubelet_knows_is_asked_of_the_pods_events() -> None:
    world = working()
    world.wants()
    world.settle()

    world.passes(60)

    message = f"not started within 60 s; the events of pod {FIRST} say why"
    assert actions(world)[0] == MarkSandboxLost(FIRST, 1, "Failed", "StartTimeout", message)


def test_a_pod_that_two_rules_put_away_is_deleted_once() -> None:
    """The sleeper of the first epoch is stale, and the run is at rest."""
    world = working()
    world.ends(POD, HarnessExit.ASLEEP)
    world.reconcile()
    world.ends(NEXT, HarnessExit.STORE_AWAY)
    world.reconcile()
    world.ends(world.harness)
    world.waits()

    deleted = [action.name for action in world.plan().actions if isinstance(action, DeletePod)]

    assert POD in deleted
    assert len(deleted) == len(set(deleted))
