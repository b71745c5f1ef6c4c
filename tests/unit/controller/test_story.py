"""What the Events of a run say, in the words that `kubectl describe` shows."""

from typing import Any

from tests.unit.controller.world import UID, World
from towline.controller.story import announcements
from towline.events.totals import Totals
from towline.kube.pod_status import Trouble
from towline.naming import harness_pod_name, sandbox_name

POD = harness_pod_name(UID, 1)


class Teller:
    """Collects what is told after each step of a world."""

    def __init__(self, world: World) -> None:
        self.world, self._old = world, dict[str, Any]()
        self.notes: list[str] = []

    def settle(self) -> list[str]:
        """The reasons that are new since the last time."""
        reasons = []
        for _ in range(8):
            self.world.reconcile()
            made = announcements(self._old, self.world.run.status)
            reasons += [each.reason for each in made]
            self.notes += [each.note for each in made]
            self._old = self.world.run.status
        return reasons


def working() -> Teller:
    teller = Teller(World())
    teller.settle()
    teller.world.starts(POD)
    teller.settle()
    return teller


def test_a_run_that_uses_a_sandbox_tells_five_things_and_each_once() -> None:
    world = World()
    teller = Teller(world)
    assert teller.settle() == ["Accepted"]
    world.starts(POD)
    assert teller.settle() == ["HarnessStarted"]
    world.wants()
    assert teller.settle() == ["SandboxRequested"]
    world.passes(1.5)
    world.starts(sandbox_name(UID, 1))
    assert teller.settle() == ["SandboxReady"]
    assert teller.notes[-1].endswith("takes tool calls 1.5 s after it was asked for")
    world.state = world.with_totals(Totals(turns=1, tool_calls=2, input_tokens=30, output_tokens=4))
    world.completes()
    assert teller.settle() == ["Succeeded"]
    assert teller.notes[-1] == "Finished after 1 turn, 2 tool calls and 34 tokens"
    assert teller.settle() == []


def test_a_lost_harness_is_told_with_its_cause_and_its_successor_by_its_pod() -> None:
    teller = working()
    teller.world.ends(POD, 137, "OOMKilled")

    assert teller.settle() == ["HarnessLost"]
    assert teller.notes[-1] == f"Pod {POD} ended: OOMKilled; it counts towards backoffLimit"
    teller.world.starts(harness_pod_name(UID, 2))

    assert teller.settle() == ["HarnessStarted"]
    assert harness_pod_name(UID, 2) in teller.notes[-1]


def test_suspending_is_no_loss() -> None:
    teller = working()
    teller.world.set(suspend=True)
    assert teller.settle() == ["Suspended"]
    teller.world.passes(20)
    teller.world.set(suspend=False)

    assert teller.settle() == ["Resumed"]


def test_what_needs_a_person_is_a_warning_in_the_reason_of_the_condition() -> None:
    world = World(missing=Trouble("TemplateNotFound", 'AgentTemplate "x" does not exist'))
    world.settle()

    (made,) = announcements({}, world.run.status)

    assert (made.reason, made.normal) == ("TemplateNotFound", False)
    assert "does not exist" in made.note


def test_a_failure_is_a_warning_with_its_reason_and_a_cancel_is_not() -> None:
    failed, cancelled = working(), working()
    failed.world.close("run.failed", {"reason": "TurnLimitReached", "message": "maxTurns is 3"})
    cancelled.world.set(cancel=True, cancel_reason="too slow")
    cancelled.world.ends(POD, 11)

    assert failed.settle() == ["Failed"]
    assert failed.notes[-1] == "TurnLimitReached: maxTurns is 3"
    assert cancelled.settle()[-1] == "Cancelled"
    assert cancelled.notes[-1] == "too slow"
