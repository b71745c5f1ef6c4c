"""The operator's clock is set back or forward: what is due may come earlier, and nothing waits for a time long past."""

from datetime import timedelta

import pytest

from tests.unit.controller.test_plan import POD, actions, working
from towline.controller.actions import CreateHarness, Grant, RaiseEpoch
from towline.exit_codes import HarnessExit
from towline.naming import harness_pod_name

JUMP = timedelta(minutes=10)


def crashed_twice():
    world = working()
    world.ends(POD)
    world.settle()
    world.starts(harness_pod_name(world.run.uid, 2))
    world.settle()
    world.ends(harness_pod_name(world.run.uid, 2))
    return world


@pytest.mark.parametrize("jump", [JUMP, -JUMP])
def test_after_a_jump_the_next_harness_is_not_kept_waiting(jump: timedelta) -> None:
    world = crashed_twice()
    world.now += jump

    assert [type(each) for each in actions(world)][:1] == [Grant]
    world.settle()
    assert world.run.epoch == 3


def test_clocks_that_are_a_little_apart_still_keep_their_distance() -> None:
    world = crashed_twice()
    world.now -= timedelta(seconds=20)

    made = world.plan()

    assert made.actions == []
    assert made.look_again == timedelta(seconds=21)


@pytest.mark.parametrize("jump", [JUMP, -JUMP])
def test_a_sleeping_run_is_woken_by_its_prompt_whatever_the_clock_says(jump: timedelta) -> None:
    world = working()
    world.waits()
    world.settle()
    world.ends(POD, HarnessExit.ASLEEP)
    world.settle()
    world.now += jump
    world.is_prompted()

    world.settle()

    assert world.run.epoch == 2
    assert {CreateHarness, Grant, RaiseEpoch}.isdisjoint(type(each) for each in actions(world))
