"""What the operator writes, and how often: status, Kubernetes events, and the feed."""

import time

from tests.control_plane.played import ready_sandbox, working
from tests.control_plane.stage import Stage
from towline.kube.kinds import EVENT
from towline.naming import feed_key


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
