"""When a sandbox is made, and what is told of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.controller.world import FACTS, FIRST, NOW, SECOND, World, actions, with_sandbox, working
from towline.controller.actions import CreateSandbox, DeletePod, MarkSandboxLost, MarkSandboxReady
from towline.kube.pod_status import Trouble


def test_no_sandbox_is_made_before_a_call_wants_one() -> None:
    world = working()
    assert actions(world) == []

    world.wants()

    assert actions(world) == [CreateSandbox(1)]


def test_an_eager_run_gets_one_at_once_and_only_one() -> None:
    world = World(facts=replace(FACTS, eager=True))
    world.settle()

    assert FIRST in world.pods
    assert actions(world) == []


def test_an_eager_run_whose_first_sandbox_did_not_start_gets_another_for_its_first_call() -> None:
    world = World(facts=replace(FACTS, eager=True))
    world.settle()
    world.passes(60)
    world.settle()
    assert world.record.state == "Failed"

    world.wants()
    world.settle()
    world.starts(SECOND)
    world.settle()

    assert (world.record.name, world.record.state) == (SECOND, "Ready")


def test_a_sandbox_with_an_address_is_told() -> None:
    world = working()
    world.wants()
    world.settle()
    world.passes(1.5)
    world.starts(FIRST, "fd00::7")

    assert actions(world) == [MarkSandboxReady(FIRST, 1, "http://[fd00::7]:8080", 1500)]


SANDBOX_ENDS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "out of memory": ({"code": 137, "reason": "OOMKilled"}, ("Lost", "OOMKilled")),
    "evicted": ({"code": 137, "reason": "Evicted", "disruption": True}, ("Lost", "Evicted")),
    "an open destination": ({"code": 78, "reason": "Error"}, ("Failed", "PolicyNotEnforced")),
}


@pytest.mark.parametrize(("end", "told"), SANDBOX_ENDS.values(), ids=SANDBOX_ENDS)
def test_the_end_of_a_sandbox_is_told_with_its_reason(end: dict[str, Any], told: tuple[str, str]) -> None:
    world = with_sandbox()
    world.ends(FIRST, **end)

    marked, removed = actions(world)

    assert isinstance(marked, MarkSandboxLost)
    assert (marked.state, marked.reason) == told
    assert removed == DeletePod(FIRST, world.pods[FIRST].uid, harness=False)


def test_a_sandbox_that_is_being_deleted_takes_no_new_call() -> None:
    world = with_sandbox()
    world.pods[FIRST] = replace(world.pods[FIRST], deadline=NOW)

    (marked,) = actions(world)

    assert isinstance(marked, MarkSandboxLost)
    assert marked.reason == "Deleted"


def test_a_sandbox_that_does_not_start_in_time_fails_with_the_reason() -> None:
    world = working()
    world.wants()
    world.settle()
    world.pods[FIRST] = replace(world.pods[FIRST], trouble=Trouble("Unschedulable", "0/2 nodes"))
    world.settle()
    assert world.plan().look_again == timedelta(seconds=60)

    world.passes(60)

    message = "not started within 60 s: 0/2 nodes"
    assert actions(world)[0] == MarkSandboxLost(FIRST, 1, "Failed", "Unschedulable", message)


def test_without_the_policies_no_sandbox_is_made() -> None:
    world = working()
    world.policies = False
    world.wants()

    assert actions(world) == []


def test_a_sandbox_of_a_former_generation_is_removed() -> None:
    world = with_sandbox()
    world.ends(FIRST, 1)
    world.settle()
    world.wants()
    world.settle()
    world._make(FIRST, False, 1)

    assert actions(world) == [DeletePod(FIRST, world.pods[FIRST].uid, harness=False)]


def test_a_sandbox_that_is_being_deleted_before_it_was_told_is_not_told() -> None:
    world = working()
    world.wants()
    world.settle()
    world.starts(FIRST)
    world.pods[FIRST] = replace(world.pods[FIRST], deadline=NOW)

    assert actions(world) == []
