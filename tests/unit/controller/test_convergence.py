"""Whatever happens to a run, in whatever order, and wherever the operator is killed: it comes to rest, and rightly."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.world import FACTS, World
from towline.controller.seen import Facts
from towline.exit_codes import HarnessExit
from towline.kube.pod_status import Trouble
from towline.naming import FINALIZER, sandbox_name

HAPPENINGS: dict[str, Any] = {
    "the harness starts": lambda world: world.starts(world.harness),
    "the harness crashes": lambda world: world.ends(world.harness),
    "the harness is out of memory": lambda world: world.ends(world.harness, 137, "OOMKilled"),
    "the harness is told to stop": lambda world: world.ends(world.harness, 11),
    "the harness finds the store away": lambda world: world.ends(world.harness, 12),
    "the harness is evicted": lambda world: world.ends(world.harness, 137, "Evicted", True),
    "the harness pod vanishes": lambda world: world.vanishes(world.harness),
    "the harness completes": lambda world: world.completes(),
    "the harness has answered and waits": lambda world: world.waits(),
    "the harness takes the prompts": lambda world: world.takes_a_turn(),
    "the harness falls asleep": lambda world: world.ends(world.harness, HarnessExit.ASLEEP),
    "a person prompts": lambda world: world.is_prompted(),
    "the harness does what is to do": lambda world: world.works(),
    "the run is to end when nobody prompts": lambda world: setattr(
        world, "facts", replace(world.facts, finish_after_seconds=90)
    ),
    "a sandbox is wanted from the start": lambda world: setattr(world, "facts", replace(world.facts, eager=True)),
    "a call wants a sandbox": lambda world: world.wants(),
    "the sandboxes start": lambda world: [world.starts(name) for name in world.pods if name.startswith("sandbox")],
    "the sandboxes die": lambda world: [world.ends(name) for name in world.pods if name.startswith("sandbox")],
    "the sandboxes vanish": lambda world: [world.vanishes(n) for n in list(world.pods) if n.startswith("sandbox")],
    "a person suspends": lambda world: world.set(suspend=True),
    "a person resumes": lambda world: world.set(suspend=False),
    "a person cancels": lambda world: world.set(cancel=True),
    "a person deletes": lambda world: world.delete(),
    "the store forgets the harness": lambda world: setattr(world, "registered", False),
    "the store goes": lambda world: setattr(world, "store_away", True),
    "the store comes": lambda world: setattr(world, "store_away", False),
    "the store is empty": lambda world: world.store_is_emptied(),
    "the store loses the end": lambda world: world.store_loses_the_end(),
    "the harness puts its tail back": lambda world: world.puts_its_tail_back(),
    "the quota is used up": lambda world: setattr(world, "refuses", Trouble("QuotaExceeded", "exceeded quota")),
    "the quota has room": lambda world: setattr(world, "refuses", None),
    "the policies go": lambda world: setattr(world, "policies", False),
    "the policies come": lambda world: setattr(world, "policies", True),
    "a second passes": lambda world: world.passes(1),
    "a minute passes": lambda world: world.passes(60),
    "the operator looks": lambda world: world.reconcile(),
    "the operator dies at once": lambda world: world.reconcile(dies_before=0),
    "the operator dies after one action": lambda world: world.reconcile(dies_before=1),
    "the operator dies after two actions": lambda world: world.reconcile(dies_before=2),
    "the operator dies after three actions": lambda world: world.reconcile(dies_before=3),
    "the operator dies after four actions": lambda world: world.reconcile(dies_before=4),
}
LOOK = "the operator looks"
stories = st.lists(st.sampled_from(sorted(HAPPENINGS)).flatmap(lambda each: st.sampled_from([each, LOOK])), max_size=40)


def told(story: list[str], facts: Facts = FACTS) -> World:
    world = World(facts=facts)
    for what in story:
        if world.exists:
            HAPPENINGS[what](world)
            acting = [pod for pod in world.pods.values() if pod.harness and pod.alive and pod.number == world.run.epoch]
            assert len(acting) <= 1, "two harnesses under one epoch"
    return world


def calm(world: World) -> None:
    """Nothing stands in the way any more, and a while passes."""
    world.store_away, world.refuses, world.policies = False, None, True
    for _ in range(12):
        if world.exists:
            world.settle()
        world.passes(30)
        world.starts(world.harness)
        world.works()


@given(stories, st.booleans())
@settings(max_examples=600)
def test_it_comes_to_rest(story: list[str], keeps_workspace: bool) -> None:
    world = told(story, replace(FACTS, keeps_workspace=keeps_workspace))

    calm(world)

    if not world.exists:
        assert not world.pods, "a deleted run leaves nothing"
        assert not world.workspace
        return
    world.settle()
    before = world.run.status
    assert world.reconcile() == []
    assert world.plan().look_again != timedelta(), "nothing spins"
    assert world.run.status == before or _only_time(before, world.run.status), "a quiet run is not written"
    alive = [pod for pod in world.pods.values() if pod.harness and pod.alive]
    if world.run.finished:
        assert not alive
        assert FINALIZER not in world.run.finalizers
        assert not [pod for pod in world.pods.values() if not pod.harness]
        assert not world.workspace, "kept for a run that is over"
        assert world.state.absent or world.state.closed, "who follows it would wait for ever"
    elif world.run.suspend:
        assert not alive
        assert not [pod for pod in world.pods.values() if not pod.harness]
    elif world.state.waiting:
        assert not alive, "a run that waits sleeps"
        assert world.state.unread == 0, "no prompt is slept through"
        assert world.run.status["phase"] == "InputRequired"
        assert not [pod for pod in world.pods.values() if not pod.harness]
        assert world.facts.finish_after_seconds is None, "it would be over"
    else:
        assert [pod.number for pod in alive] == [world.run.epoch]
        assert world.state.epoch == world.run.epoch
        assert world.registered, "the gateway knows it"
        world.wants()
        world.settle()
        HAPPENINGS["the sandboxes start"](world)
        world.settle()
        assert world.record.state == "Ready", "a call that wants a sandbox gets one"


@given(stories)
@settings(max_examples=300)
def test_no_pod_is_ever_made_twice_for_an_epoch_that_has_had_one(story: list[str]) -> None:
    world = told(story)

    calm(world)

    harnesses = [name for name in world.made if name.startswith("run-")]
    seen_by_status = [name for name in harnesses if harnesses.count(name) > 1]
    # Made again only when the first one was gone before any look at the run saw it, and so before it was recorded.
    assert len(set(seen_by_status)) <= sum(1 for what in story if "vanishes" in what or "dies" in what)


@given(stories)
@settings(max_examples=300)
def test_a_cancelled_run_ends(story: list[str]) -> None:
    world = told(story)
    if not world.exists:
        return
    world.set(cancel=True)

    calm(world)

    assert not world.exists or world.run.finished


@given(stories, st.booleans())
@settings(max_examples=300)
def test_a_deleted_run_goes_even_without_the_store(story: list[str], store_away: bool) -> None:
    world = told(story)
    if world.exists:
        world.delete()
    world.store_away = store_away

    for _ in range(20):
        if world.exists:
            world.reconcile()
        world.passes(20)

    assert not world.exists
    assert not world.pods


def test_a_wanted_sandbox_is_made_told_and_replaced() -> None:
    world = World()
    world.settle()
    world.starts(world.harness)
    world.wants()
    world.settle()
    first = sandbox_name(world.run.uid, 1)
    world.starts(first)
    world.settle()
    assert world.record.state == "Ready"
    world.ends(first, 137, "OOMKilled")
    world.settle()
    assert (world.record.state, world.record.reason) == ("Lost", "OOMKilled")
    assert first not in world.pods

    world.wants()
    world.settle()
    world.starts(sandbox_name(world.run.uid, 2))
    world.settle()

    assert world.record.name == sandbox_name(world.run.uid, 2)


def _only_time(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return {key for key in after if before.get(key) != after[key]} <= {"pausedSeconds"}
