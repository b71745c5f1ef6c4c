"""The status as a function of what is seen."""

from dataclasses import replace
from datetime import timedelta

from tests.unit.controller.world import FACTS, NOW, POD, UID, World, working
from towline.api.conditions import REASONS, ConditionType
from towline.controller.status import COUNTERS_EVERY, check, due, status_of
from towline.events.totals import Totals
from towline.kube.pod_status import Trouble
from towline.naming import harness_pod_name, sandbox_name


def said(world: World, kind: str) -> tuple[str, str]:
    (found,) = (each for each in world.run.status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"]


def test_every_condition_has_a_documented_reason() -> None:
    for world in (World(), working(), World(missing=Trouble("TemplateNotFound", "no")), World(store_away=True)):
        for each in status_of(world.seen())["conditions"]:
            assert each["reason"] in REASONS[ConditionType(each["type"])]


def test_until_the_end_the_reason_beside_the_phase_is_what_the_run_waits_for() -> None:
    nowhere = World(missing=Trouble("TemplateNotFound", "no template"))
    nowhere.reconcile()
    storeless = World(store_away=True)
    storeless.reconcile()
    beginning, paused = World(), World()
    beginning.settle()
    paused.set(suspend=True)
    paused.settle()

    told = [said(each, "Succeeded") for each in (nowhere, storeless, beginning, paused, working())]

    assert told == [
        ("Unknown", "TemplateNotFound"),
        ("Unknown", "StoreUnavailable"),
        ("Unknown", "Starting"),
        ("Unknown", "UserRequested"),
        ("Unknown", "Running"),
    ]


def test_the_status_of_an_unchanged_run_is_equal_to_the_former_one() -> None:
    world = working()
    world.passes(100)

    assert status_of(world.seen()) == world.run.status


def test_a_run_without_the_store_says_so_only_while_no_harness_runs() -> None:
    waiting = World(store_away=True)
    waiting.reconcile()
    assert said(waiting, "HarnessReady") == ("False", "StoreUnavailable")
    assert said(waiting, "Accepted") == ("True", "Accepted")

    world = working()
    before = world.run.status
    world.store_away = True
    world.reconcile()

    assert world.run.status == before


def test_the_time_of_a_condition_moves_with_its_status_and_not_with_its_reason() -> None:
    world = World()
    world.settle()
    (before,) = (each for each in world.run.status["conditions"] if each["type"] == "HarnessReady")
    world.passes(5)
    world.pods[POD] = replace(world.pods[POD], trouble=Trouble("Unschedulable", "0/2"))
    world.settle()
    (told,) = (each for each in world.run.status["conditions"] if each["type"] == "HarnessReady")
    assert (told["reason"], told["lastTransitionTime"]) == ("Unschedulable", before["lastTransitionTime"])

    world.starts(POD)
    world.settle()

    (told,) = (each for each in world.run.status["conditions"] if each["type"] == "HarnessReady")
    assert told["lastTransitionTime"] == "2026-11-29T12:00:05Z"


def test_counters_wait_and_conditions_do_not() -> None:
    world = working()
    old = world.run.status
    world.state = replace(world.state, head=9, totals=Totals(turns=3, input_tokens=100))
    new = status_of(world.seen())
    assert not due(old, new, timedelta(seconds=1))
    assert due(old, new, COUNTERS_EVERY)

    world.set(suspend=True)

    assert due(old, status_of(world.seen()), timedelta())


def test_a_result_is_bounded() -> None:
    world = working()
    world.close("run.completed", {"result": {"text": "é" * 10_000, "truncated": False, "sha256": "a" * 64}})
    world.settle()

    status = check(world.run.status)

    assert status.result is not None
    assert (len(status.result.text), status.result.truncated) == (4096, True)


def test_a_reason_that_is_not_on_the_list_is_an_internal_error_that_tells_it() -> None:
    world = working()
    world.close("run.failed", {"reason": "Gremlins", "message": "x" * 5000})
    world.settle()

    assert world.run.status["failure"]["reason"] == "InternalError"
    assert world.run.status["failure"]["message"].startswith("Gremlins: x")
    check(world.run.status)


def test_an_outcome_stays_whatever_comes_later() -> None:
    world = working()
    world.completes()
    world.settle()
    before = world.run.status
    world.store_away = True
    world.set(cancel=True)
    world.settle()

    for name in ("phase", "completionTime", "result"):
        assert world.run.status[name] == before[name]
    assert said(world, "Succeeded") == ("True", "Completed")


def test_costs_are_told_only_where_the_model_has_a_price() -> None:
    world = working()
    assert "costMicroUSD" not in world.run.status["usage"]

    world.facts = replace(FACTS, has_price=True)

    assert status_of(world.seen())["usage"]["costMicroUSD"] == 0


def test_an_attempt_tells_when_it_began_and_ended_as_far_as_its_pod_told() -> None:
    world = working()
    world.passes(30)
    world.ends(POD, 1)
    world.settle()
    world.starts(harness_pod_name(UID, 2))
    world.settle()
    world.vanishes(harness_pod_name(UID, 2))
    world.passes(60)
    world.settle()

    crashed, gone = check(world.run.status).attempts

    assert (crashed.start_time, crashed.end_time) == (NOW, NOW + timedelta(seconds=30))
    assert gone.start_time is None


def test_only_the_last_five_attempts_are_kept() -> None:
    world = working()
    for epoch in range(1, 9):
        name = harness_pod_name(UID, epoch)
        world.starts(name)
        world.settle()
        world.ends(name, 137, "Evicted", True)
        world.passes(60)
        world.settle()

    assert [each["epoch"] for each in world.run.status["attempts"]] == [4, 5, 6, 7, 8]
    check(world.run.status)


def test_a_sandbox_keeps_the_time_it_was_wanted() -> None:
    world = working()
    world.wants()
    world.settle()
    world.passes(2)
    world.starts(sandbox_name(UID, 1))
    world.settle()

    told = world.run.status["sandbox"]

    assert (told["requestedAt"], told["readyAt"]) == ("2026-11-29T12:00:00.000Z", "2026-11-29T12:00:02.000Z")


def test_a_run_that_awaits_a_prompt_says_so_and_its_deadline_stands_still() -> None:
    world = working()
    world.waits()
    world.settle()
    assert world.run.status["phase"] == "InputRequired"
    world.passes(50)
    world.takes_a_turn()
    world.settle()

    assert (world.run.status["phase"], world.run.status["pausedSeconds"]) == ("Running", 50)
