"""The operator's decisions, by value: what is seen, and what is due."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.unit.controller.world import FACTS, NEXT, NOW, POD, UID, World, actions, kinds, with_sandbox, working
from towline.controller import plan as planning
from towline.controller.actions import (
    AddFinalizer,
    CreateHarness,
    DeletePod,
    Finish,
    Grant,
    MarkSandboxDeleted,
    RaiseEpoch,
    RegisterHarness,
    RequestCancel,
    StoreSnapshot,
)
from towline.controller.plan_pods import OVERDUE
from towline.exit_codes import HarnessExit
from towline.kube.pod_status import Ended, Trouble
from towline.naming import harness_pod_name


def test_a_new_run_is_stored_granted_fenced_and_started_in_this_order() -> None:
    assert actions(World()) == [
        *(StoreSnapshot(), AddFinalizer(), Grant(1), RaiseEpoch(1), CreateHarness(1)),
    ]


def test_a_run_that_works_is_left_alone() -> None:
    assert actions(working()) == []


def test_a_harness_that_the_store_has_forgotten_is_registered_again_and_counts_as_no_loss() -> None:
    world = working()
    world.registered = False

    assert actions(world) == [RegisterHarness(1)]
    world.settle()
    assert world.run.crashes == 0


def test_what_was_forgotten_of_a_harness_that_has_ended_is_left_alone() -> None:
    world = working()
    world.registered = False
    world.ends(POD, 137)

    assert RegisterHarness not in kinds(world)


def test_a_run_that_begins_suspended_is_accepted_and_no_more() -> None:
    world = World()
    world.set(suspend=True)

    assert actions(world) == [StoreSnapshot()]


@pytest.mark.parametrize("reason", ["TemplateNotFound", "SecretNotFound"])
def test_what_is_missing_is_waited_for(reason: str) -> None:
    world = World(missing=Trouble(reason))

    made = world.plan()

    assert (made.actions, made.look_again) == ([], planning.MISSING_RECHECK)


def test_without_the_store_nothing_begins() -> None:
    assert actions(World(store_away=True)) == []


def test_an_epoch_that_was_granted_without_a_pod_is_used_and_not_granted_again() -> None:
    world = World()
    world.reconcile(dies_before=3)

    assert actions(world) == [RaiseEpoch(1), CreateHarness(1)]


def test_the_pod_of_the_granted_epoch_that_is_gone_is_lost_if_it_ever_was() -> None:
    world = working()
    world.vanishes(POD)
    gone = Ended(reason="Deleted", disruption=True)

    assert actions(world) == [Grant(2, gone), RaiseEpoch(2, gone), CreateHarness(2)]


@pytest.mark.parametrize(
    ("code", "reason", "disruption", "crashed"),
    [
        (1, "Error", False, True),
        (137, "OOMKilled", False, True),
        (0, "Completed", False, True),
        (10, "Error", False, False),
        (11, "Error", False, False),
        (12, "Error", False, False),
        (14, "Error", False, False),
        (137, "Evicted", True, False),
    ],
)
def test_only_a_fault_of_the_harness_counts(code: int, reason: str, disruption: bool, crashed: bool) -> None:
    world = working()
    world.ends(POD, code, reason, disruption)

    granted = actions(world)[0]

    assert isinstance(granted, Grant)
    assert (granted.epoch, granted.crashed) == (2, crashed)


def test_crashes_beyond_the_limit_end_the_run() -> None:
    world = working()
    for epoch in (1, 2, 3):
        name = harness_pod_name(UID, epoch)
        world.starts(name)
        world.settle()
        world.ends(name)
        world.passes(40)
        if epoch < 3:
            world.settle()

    (finish,) = actions(world)

    assert isinstance(finish, Finish)
    assert (finish.epoch, finish.kind, finish.reason) == (4, "Failed", "BackoffLimitExceeded")


def crash(world: World, epoch: int) -> None:
    name = harness_pod_name(UID, epoch)
    world.starts(name)
    world.settle()
    world.ends(name)
    world.passes(40)


def test_three_crashes_in_a_row_at_one_point_end_the_run_whatever_its_back_off() -> None:
    world = working()
    world.facts = replace(FACTS, backoff_limit=100)
    for epoch in (1, 2):
        crash(world, epoch)
        world.settle()
    world.starts(harness_pod_name(UID, 3))
    world.ends(harness_pod_name(UID, 3), 137, "Evicted", True)
    world.passes(40)
    world.settle()
    crash(world, 4)

    (finish,) = actions(world)

    assert isinstance(finish, Finish)
    assert (finish.reason, finish.message) == (
        "CrashLoop",
        "3 harnesses in a row crashed at event 0, the last one with Error, exit code 1",
    )


def test_crashes_between_which_the_run_got_further_are_no_loop() -> None:
    world = working()
    world.facts = replace(FACTS, backoff_limit=100)
    for epoch in range(1, 8):
        if epoch % 2:
            world.takes_a_turn()
        crash(world, epoch)
        world.settle()

    assert not world.run.finished
    assert world.run.crashes == 7


def test_a_harness_that_is_killed_while_its_pod_is_being_deleted_did_not_crash() -> None:
    world = working()
    world.pods[POD] = replace(world.pods[POD], deadline=world.now + timedelta(seconds=10))
    world.ends(POD, 137, "Error")

    granted = actions(world)[0]

    assert isinstance(granted, Grant)
    assert not granted.crashed


def test_disruptions_alone_never_end_the_run() -> None:
    world = replace(working(), facts=replace(FACTS, backoff_limit=0))
    for epoch in range(1, 12):
        name = harness_pod_name(UID, epoch)
        world.starts(name)
        world.settle()
        world.ends(name, 137, "Evicted", True)
        world.passes(60)
        world.settle()

    assert world.run.epoch == 12
    assert not world.run.finished


def test_the_second_loss_within_minutes_delays_the_next_harness() -> None:
    world = working()
    world.ends(POD)
    world.settle()
    world.starts(NEXT)
    world.settle()
    world.ends(NEXT)

    made = world.plan()

    assert (made.actions, made.look_again) == ([], timedelta(seconds=1))


def test_a_seal_that_failed_is_not_tried_again() -> None:
    world = working()
    world.ends(POD, 13)

    (finish,) = actions(world)

    assert isinstance(finish, Finish)
    assert finish.reason == "SealFailed"


def test_a_pod_that_is_being_deleted_is_waited_for_and_then_given_up() -> None:
    world = working()
    world.pods[POD] = replace(world.pods[POD], deadline=NOW)
    assert actions(world) == []

    world.now += OVERDUE

    assert actions(world)[0] == DeletePod(POD, world.pods[POD].uid, harness=True, grace_seconds=0)
    assert kinds(world)[1:] == [Grant, RaiseEpoch, CreateHarness]


def test_a_harness_of_a_former_epoch_is_removed_unless_it_is_the_last_and_has_ended() -> None:
    world = working()
    world.ends(POD)
    world.settle()
    assert POD in world.pods, "its log may be wanted"
    world.pods[POD] = replace(world.pods[POD], ended=None)

    assert actions(world) == [DeletePod(POD, world.pods[POD].uid, harness=True)]


def test_a_status_older_than_the_store_is_overtaken_and_not_repeated() -> None:
    """An etcd that was restored from a backup has forgotten epochs."""
    world = working()
    world.state = replace(world.state, epoch=7)

    assert actions(world)[0] == Grant(8)


def test_a_snapshot_that_cannot_be_read_holds_the_run_up_visibly_and_holds_up_no_cancel() -> None:
    world = working()
    world.unreadable = Trouble("InvalidSpec", "of another version")
    world.ends(POD)
    world.settle()
    assert world.run.status["phase"] == "Running"
    told = world.run.condition("Succeeded")
    assert (told["status"], told["reason"], told["message"]) == ("Unknown", "InvalidSpec", "of another version")

    world.set(cancel=True)
    world.settle()

    assert world.run.status["phase"] == "Cancelled"


# -- cancel and deadline ---------------------------------------------------------------------------------------------


def test_cancel_is_asked_for_then_waited_for_then_enforced_then_recorded() -> None:
    world = working()
    world.set(cancel=True, cancel_reason="enough")
    assert actions(world) == [RequestCancel("enough")]
    world.reconcile()
    made = world.plan()
    assert (made.actions, made.look_again) == ([], planning.CANCEL_GRACE)

    world.passes(4)

    fence_first = [Finish(2, "Cancelled", "enough"), DeletePod(POD, world.pods[POD].uid, harness=True)]
    assert actions(world) == fence_first
    world.settle()
    assert world.run.status["phase"] == "Cancelled", "within 5 s, though the pod still hangs"


def test_a_cancelled_harness_that_ends_is_recorded_at_once() -> None:
    world = working()
    world.set(cancel=True)
    world.reconcile()
    world.ends(POD, 11)

    assert actions(world) == [Finish(2, "Cancelled", "Cancelled")]


def test_a_deadline_is_a_cancel_that_fails() -> None:
    world = working()
    world.facts = replace(FACTS, active_deadline_seconds=60)
    assert world.plan().look_again == timedelta(seconds=60)

    world.passes(60)
    assert actions(world) == [RequestCancel("DeadlineExceeded")]
    world.reconcile()
    world.ends(POD, 11)

    (finish,) = actions(world)
    assert isinstance(finish, Finish)
    assert (finish.kind, finish.reason) == ("Failed", "DeadlineExceeded")


def test_a_pause_does_not_count_towards_the_deadline() -> None:
    world = working()
    world.facts = replace(FACTS, active_deadline_seconds=60)
    world.passes(30)
    world.set(suspend=True)
    world.settle()
    world.passes(1000)
    world.settle()
    world.set(suspend=False)
    world.settle()

    world.passes(29)
    assert not any(isinstance(action, RequestCancel) for action in actions(world))
    world.passes(1)
    assert RequestCancel("DeadlineExceeded") in actions(world)


def test_an_outcome_beats_every_wish() -> None:
    world = working()
    world.completes()
    world.set(cancel=True, suspend=True)

    world.settle()

    assert world.run.status["phase"] == "Succeeded"


def suspended() -> World:
    world = working()
    world.set(suspend=True)
    world.settle()
    world.passes(11)
    world.settle()
    return world


def with_its_tail_put_back() -> World:
    """The harness outlived the loss, for a while: the log begins with what it had kept."""
    world = working()
    world.store_is_emptied()
    world.puts_its_tail_back()
    world.ends(POD)
    return world


WITHOUT_HISTORY = pytest.mark.parametrize("begun", [working, suspended, with_its_tail_put_back])


@WITHOUT_HISTORY
@pytest.mark.parametrize("new_operator", [False, True])
def test_a_history_that_is_gone_ends_the_run_but_not_in_the_first_moment(
    begun: Callable[[], World], new_operator: bool
) -> None:
    world = begun()
    counted = world.run.status["stream"]
    if world.stored:
        world.store_is_emptied()
    if new_operator:
        world.operator_dies()
    made = world.plan()
    assert (made.actions, made.look_again) == ([], timedelta(seconds=60))
    world.settle()
    assert not world.run.finished

    world.passes(60)
    world.settle()

    assert world.run.status["phase"] == "Failed"
    assert world.run.status["failure"]["reason"] == "StoreLost"
    assert world.run.status["stream"] == counted, "as they stood"


@WITHOUT_HISTORY
def test_a_run_whose_history_is_gone_can_be_cancelled_at_once(begun: Callable[[], World]) -> None:
    world = begun()
    if world.stored:
        world.store_is_emptied()
    world.settle()

    world.set(cancel=True, cancel_reason="enough")
    world.settle()

    assert world.run.status["phase"] == "Cancelled"


def said(world: World, kind: str) -> tuple[str, str]:
    told = world.run.condition(kind)
    return told["status"], told["reason"]


def test_a_history_that_is_there_again_changes_nothing() -> None:
    world = working()
    world.waits()
    world.settle()
    world.ends(POD, HarnessExit.ASLEEP)
    world.settle()
    before, state, last = world.run.status, world.state, world.last
    world.store_is_emptied()
    world.settle()
    world.passes(59)

    world.stored, world.state, world.last = True, state, last
    world.settle()

    assert world.run.status == before
    assert world.pods == {}


def test_suspending_puts_both_pods_away_and_resuming_is_no_loss() -> None:
    world = with_sandbox()
    world.set(suspend=True)
    assert kinds(world) == [DeletePod, MarkSandboxDeleted, DeletePod]
    world.settle()
    world.passes(11)
    world.settle()

    world.set(suspend=False)

    assert actions(world)[1:] == [RaiseEpoch(2), CreateHarness(2)]


def test_a_run_that_the_store_knows_is_cancelled_by_its_log_even_if_the_status_does_not_know_that_yet() -> None:
    world = World()
    world.reconcile(dies_before=1)
    world.run = replace(world.run, status={})
    world.set(cancel=True)

    assert actions(world) == [RequestCancel("Cancelled"), Finish(2, "Cancelled", "Cancelled")]


def the_grant(world: World) -> Grant:
    (granted,) = (action for action in actions(world) if isinstance(action, Grant))
    return granted


def test_a_run_that_is_resumed_before_its_pod_is_gone_still_knows_that_nothing_was_lost() -> None:
    world = working()
    world.set(suspend=True)
    world.settle()
    assert world.pods[POD].deleting
    world.set(suspend=False)
    world.settle()
    assert (said(world, "Suspended"), said(world, "HarnessReady")) == (("True", "UserRequested"), ("False", "Waking"))

    world.passes(11)

    granted = the_grant(world)
    assert granted.ended is not None
    assert granted.ended.reason == "Suspended"
    world.settle()
    assert said(world, "Suspended") == ("False", "NotSuspended")


def test_a_run_that_is_resumed_while_the_store_is_away_still_knows_that_nothing_was_lost() -> None:
    world = working()
    world.set(suspend=True)
    world.settle()
    world.passes(11)
    world.settle()
    world.store_away = True
    world.set(suspend=False)
    world.settle()

    world.store_away = False

    granted = the_grant(world)
    assert granted.ended is not None
    assert granted.ended.reason == "Suspended"
