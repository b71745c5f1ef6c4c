"""What happens to a verb while the store of its run goes away, comes back, or stays away."""

from collections.abc import Sequence

import pytest

from towline.cli.target import FIRST_REOPENINGS, PAUSES_SECONDS, SETTLED_SECONDS, through_changes
from towline.errors import Invalid, StoreUnavailable
from towline.kube.errors import Unreachable
from towline.local.faults import MachineCannot, NoSuchRun

AWAY = StoreUnavailable("redis://x did not answer")


class Work:
    """Does what `steps` say, one at each opening: raises a fault, or returns a number. An `int` before a fault is how
    far it gets."""

    def __init__(self, *steps: "tuple[int, Exception] | int") -> None:
        self._steps = list(steps)
        self.progress = 0
        self.seconds = 0.0
        """How long each step takes."""
        self._now = 0.0
        self.pauses: list[float] = []

    async def __call__(self) -> int:
        step = self._steps.pop(0)
        self._now += self.seconds
        if isinstance(step, int):
            return step
        self.progress += step[0]
        raise step[1]

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def run(self) -> int:
        return await through_changes(self, lambda: self.progress, sleep=self.sleep, clock=lambda: self._now)


async def test_a_store_that_is_away_for_ten_seconds_is_waited_for() -> None:
    work = Work((1, AWAY), *[(0, AWAY)] * (len(PAUSES_SECONDS) - 1), 7)

    assert await work.run() == 7

    assert sum(work.pauses) > 10
    assert work.pauses[0] < 1, "one that changes hands is back at once"


async def test_a_store_that_stays_away_is_told() -> None:
    work = Work((1, AWAY), *[(0, AWAY)] * len(PAUSES_SECONDS))
    with pytest.raises(StoreUnavailable):
        await work.run()


async def test_whoever_gets_further_may_lose_the_store_as_often_as_it_goes_away() -> None:
    assert await Work(*[(1, AWAY)] * 20, 7).run() == 7


async def test_a_quiet_run_may_lose_the_store_as_often_as_it_goes_away_too() -> None:
    work = Work((1, AWAY), *[(0, AWAY)] * 20, 7)
    work.seconds = SETTLED_SECONDS + 1
    assert await work.run() == 7


async def test_a_store_that_never_answered_is_soon_told() -> None:
    work = Work(*[(0, AWAY)] * (FIRST_REOPENINGS + 1))
    with pytest.raises(StoreUnavailable):
        await work.run()
    assert sum(work.pauses) < 2


async def test_a_run_that_vanished_with_its_store_had_a_launcher_that_kept_nothing() -> None:
    with pytest.raises(MachineCannot, match="the launcher of the run has ended, and its store with it"):
        await Work((1, AWAY), (0, NoSuchRun("no run 'x' here"))).run()


@pytest.mark.parametrize("before", [[], [(1, AWAY)]])
async def test_every_other_fault_is_told_as_it_is(before: Sequence[tuple[int, Exception]]) -> None:
    with pytest.raises(Invalid, match="nobody works on the run"):
        await Work(*before, (0, Invalid("nobody works on the run"))).run()


async def test_a_run_that_never_was_here_is_told_as_that() -> None:
    with pytest.raises(NoSuchRun):
        await Work((0, NoSuchRun("no run 'x' here"))).run()


async def test_an_api_server_that_is_away_with_the_store_is_waited_for_and_else_told_at_once() -> None:
    assert await Work((1, AWAY), (0, Unreachable("no answer")), 7).run() == 7
    with pytest.raises(Unreachable):
        await Work((0, Unreachable("no answer"))).run()
