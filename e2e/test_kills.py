"""What is killed on a cluster is missed by no run: one point of each kind; `make kill-cluster` does them all."""

from collections.abc import AsyncIterator

import pytest

from e2e.installation import Installation
from e2e.kills.acts import Outcome
from e2e.kills.play import offer
from e2e.kills.stage import Stage, stage
from e2e.kills.sweep import play
from e2e.runs import assert_whole
from tests.durability.verdict import Case

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("cluster")]


@pytest.fixture
async def kills(installation: Installation) -> AsyncIterator[Stage]:
    async with stage(installation) as it:
        offer(it)
        yield it


async def killed(kills: Stage, point: str) -> Outcome:
    """A run of which something died, and came to its end without a broken promise."""
    outcome = await play(kills, Case(point, 1), {point: 1})
    assert outcome.violations == [], outcome.story
    assert outcome.killed_at is not None, outcome.story
    assert_whole(outcome.log)
    return outcome


async def test_a_harness_that_dies_between_answer_and_call_is_replaced_inside_the_turn(kills: Stage) -> None:
    outcome = await killed(kills, "harness.answer.after")

    assert [event.payload["signal"] for event in outcome.log if event.type == "harness.lost"] == [9]


async def test_a_gateway_that_dies_with_a_call_at_the_tool_server_is_missed_by_nobody(kills: Stage) -> None:
    outcome = await killed(kills, "gateway.forward.after")

    assert "harness.lost" not in [event.type for event in outcome.log]


async def test_an_operator_that_dies_before_its_pod_is_known_is_followed_by_the_other(kills: Stage) -> None:
    await killed(kills, "operator.harness.after")


async def test_a_paused_harness_that_was_replaced_is_refused_when_it_wakes(kills: Stage) -> None:
    outcome = await killed(kills, "outside.harness.pause")

    epochs = [event.epoch for event in outcome.log]
    assert epochs == sorted(epochs)
    assert max(epochs) == 2
