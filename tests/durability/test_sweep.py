"""The sweep itself, on two points of each role; `make kill-sweep` does them all."""

from random import Random

import pytest

from tests.durability.sweep import cases_of, local_sweep, work
from tests.durability.verdict import Case, Tally, Verdict, Way, armed_by
from towline.sandbox.bundle import build_bundle
from towline.testing.checker import Violation

CASE = Case("harness.answer.after", 1)


@pytest.mark.timeout(300)
async def test_killed_at_some_points_a_run_keeps_every_promise(tmp_path_factory, capsys):
    points = ["harness.answer.after", "harness.call.after", "gateway.claim.after", "gateway.reply"]
    tally = Tally(len(points))

    await local_sweep(points, 1, 1, build_bundle(tmp_path_factory.mktemp("cache")), tally)

    assert tally.good, capsys.readouterr().out
    assert len(tally.verdicts) == 4


def test_a_violation_and_a_point_that_is_never_reached_fail_the_sweep():
    reached = Verdict(CASE, "tools", True, (), 1.0)
    passed_by = Verdict(Case("harness.answer.after", 2), "tools", False, (), 1.0)
    violated = Verdict(CASE, "tools", True, (Violation("lost", "ev_1"),), 1.0)

    assert Tally(1, [reached, passed_by]).good
    assert not Tally(1, [passed_by]).good
    assert not Tally(1, [reached, violated]).good


def test_the_last_line_counts():
    violated = Verdict(CASE, "tools", True, (Violation("lost", "ev_1"), Violation("executed twice", "a1")), 1.0)

    line = Tally(1, [violated]).line()

    assert line.startswith("points 1, runs 1, kills 1, lost 1, duplicated 0, out of order 0, double executions 1, ")


async def test_a_point_that_was_passed_fewer_times_than_before_is_tried_at_its_first_pass():
    class Once:
        """A stand on which the point is passed once, though twice when it was explored."""

        async def play(self, case: Case) -> Verdict:
            armed = armed_by(case, Way("tools", 1, 2), LastHit())
            return Verdict(case, armed, armed == "harness.answer.after:1", (), 0.0)

    class LastHit(Random):
        def randint(self, a: int, b: int) -> int:
            return b

    tally = Tally(1)
    ways = {"harness.answer.after": [Way("tools", 1, 2)]}

    await work(Once(), cases_of(["harness.answer.after"], 1, ways, tally), tally)

    assert [each.reached for each in tally.verdicts] == [False, True]
    assert tally.good


def test_a_point_that_nothing_comes_by_fails_the_sweep():
    tally = Tally(1)

    assert cases_of(["harness.answer.after"], 2, {}, tally).empty()
    assert not tally.good
