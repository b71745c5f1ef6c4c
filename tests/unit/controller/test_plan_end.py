"""What becomes of a run that has ended, and of one that is being deleted."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.unit.controller.world import FIRST, NOW, POD, World, actions, with_sandbox, working
from towline.controller import plan_end
from towline.controller.actions import (
    DeletePod,
    DeleteRun,
    DeleteWorkspace,
    ExpireHistory,
    Finish,
    MarkSandboxDeleted,
    RequestCancel,
    Settle,
)
from towline.controller.plan_pods import OVERDUE
from towline.naming import FINALIZER

RESULT = {"text": "done", "truncated": False, "sha256": ""}


def test_the_pods_of_a_finished_run_go_and_then_the_finalizer() -> None:
    world = with_sandbox()
    world.completes()
    assert actions(world) == [
        MarkSandboxDeleted(FIRST),
        DeletePod(FIRST, world.pods[FIRST].uid, harness=False),
    ], "the harness may end by itself, and the gateway dials nothing that is going"
    world.reconcile()
    world.ends(POD, 0, "Completed")
    world.passes(11)

    assert actions(world) == [DeletePod(POD, world.pods[POD].uid, harness=True), Settle(_settled(world))]


def _settled(world: World, due: str | None = None) -> dict[str, str | None]:
    return {"towline.dev/delete-after": due, "towline.dev/settled-generation": str(world.run.generation)}


def test_a_kept_pod_holds_up_neither_the_finalizer_nor_itself() -> None:
    world = working()
    world.retention = timedelta(minutes=5)
    world.completes()
    world.ends(POD, 0, "Completed")
    world.settle()
    assert FINALIZER not in world.run.finalizers
    assert world.plan().look_again == timedelta(minutes=5)

    world.passes(300)

    assert actions(world) == [DeletePod(POD, world.pods[POD].uid, harness=True)]


def test_a_time_to_live_is_noted_and_kept() -> None:
    world = working()
    world.set(ttl_seconds=60)
    world.completes()
    world.ends(POD, 0)
    world.settle()
    assert world.run.annotations["towline.dev/delete-after"] == "2026-11-29T12:01:00Z"

    world.passes(60)

    assert actions(world) == [DeleteRun(NOW + timedelta(seconds=60))]


def test_a_finished_run_whose_time_to_live_changed_is_settled_anew() -> None:
    world = working()
    world.completes()
    world.ends(POD, 0)
    world.settle()

    world.set(ttl_seconds=3600)

    assert actions(world) == [Settle(_settled(world, "2026-11-29T13:00:00Z"))]


def test_a_pod_of_a_finished_run_that_never_goes_is_not_asked_for_again_and_again() -> None:
    world = with_sandbox()
    world.completes()
    world.ends(POD, 0)
    world.settle()
    world.pods[FIRST] = replace(world.pods[FIRST], deadline=NOW, forced=True)
    world.now = NOW + OVERDUE + plan_end.LET_GO
    world.settle()

    made = world.plan()

    assert (made.actions, made.look_again) == ([], None)
    assert FINALIZER not in world.run.finalizers


@pytest.mark.parametrize(
    ("ends", "end"),
    [
        (lambda w: w.completes(), Finish(2, "Succeeded", "Completed", result=RESULT)),
        (
            lambda w: w.close("run.failed", {"reason": "ModelRefused", "message": "no"}),
            Finish(2, "Failed", "ModelRefused", "no"),
        ),
        (lambda w: w.close("run.cancelled", {"reason": "enough"}), Finish(2, "Cancelled", "enough")),
    ],
)
def test_an_end_that_the_store_lost_is_written_again_as_it_was_recorded(
    ends: Callable[[World], None], end: Finish
) -> None:
    world = working()
    ends(world)
    world.ends(POD, 0, "Completed")
    world.settle()
    before = world.run.status
    world.store_loses_the_end()

    assert actions(world) == [end]

    world.settle()
    assert world.state.closed is not None
    for name in ("phase", "completionTime", "result", "failure", "conditions"):
        assert world.run.status.get(name) == before.get(name)


def test_a_finished_run_whose_end_the_store_lost_is_deleted_with_the_end_that_it_had() -> None:
    world = working()
    world.completes()
    world.reconcile()
    world.store_loses_the_end()
    world.delete()
    world.settle()
    world.passes(11)

    world.settle()

    assert not world.exists
    assert (world.state.closed, world.state.cancel) == ("run.completed", None)


# -- deletion --------------------------------------------------------------------------------------------------------


def test_deleting_cancels_then_removes_then_lets_go() -> None:
    world = with_sandbox()
    world.delete()
    assert actions(world) == [
        RequestCancel("Deleted"),
        DeletePod(POD, world.pods[POD].uid, harness=True),
        DeletePod(FIRST, world.pods[FIRST].uid, harness=False),
    ]
    world.reconcile()
    world.passes(11)

    assert actions(world) == [Finish(2, "Cancelled", "Deleted"), ExpireHistory(), Settle()]


def test_deleting_without_the_store_waits_a_while_and_no_longer() -> None:
    world = working()
    world.store_away = True
    world.delete()
    world.reconcile()
    world.passes(11)
    assert actions(world) == []

    world.passes(20)
    assert actions(world) == [Settle()]
    world.operator_dies()

    assert actions(world) == [DeleteWorkspace(), Settle()], "nobody can say now whether it had one"


def test_a_pod_that_even_force_does_not_remove_is_let_go() -> None:
    world = working()
    world.delete()
    world.pods[POD] = replace(world.pods[POD], deadline=NOW, forced=True)
    world.now = NOW + OVERDUE + plan_end.LET_GO - timedelta(seconds=1)
    assert Settle() not in actions(world)

    world.now += timedelta(seconds=1)

    assert Settle() in actions(world)


def test_a_run_without_our_finalizer_is_not_ours_to_hold() -> None:
    world = World()
    world.run = replace(world.run, deleting_since=NOW)

    assert actions(world) == []


def test_a_pod_that_was_forced_out_is_not_forced_again() -> None:
    world = working()
    world.delete()
    world.reconcile()
    world.pods[POD] = replace(world.pods[POD], deadline=NOW, forced=True)
    world.now = NOW + OVERDUE

    assert not any(isinstance(action, DeletePod) for action in actions(world))
