"""The work queue, in virtual time."""

import asyncio

import pytest

from towline.controller.queue import FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, spread=lambda: 1.0)


async def ready(queue: WorkQueue[str]) -> list[str]:
    """Everything that would be worked on now, worked on."""
    keys = []
    while True:
        try:
            key = await asyncio.wait_for(queue.get(), 0.001)
        except TimeoutError:
            return keys
        keys.append(key)
        queue.done(key)


async def test_a_key_added_twice_is_looked_at_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.add("b")
    queue.add("a")

    assert await ready(queue) == ["a", "b"]


async def test_a_key_added_while_it_is_worked_on_comes_again_once_and_not_at_the_same_time(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert await ready(queue) == []

    queue.done(key)

    assert await ready(queue) == ["a"]


async def test_a_key_comes_when_it_is_due(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    assert await ready(queue) == []

    clock.now = 10

    assert await ready(queue) == ["a"]


async def test_the_earliest_of_several_times_counts_and_only_it(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 7)

    clock.now = 5
    assert await ready(queue) == ["a"]
    clock.now = 20
    assert await ready(queue) == []


async def test_a_look_now_makes_a_later_one_needless(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add("a")
    assert await ready(queue) == ["a"]

    clock.now = 10

    assert await ready(queue) == []


async def test_failures_come_back_later_each_time_up_to_a_bound(queue: WorkQueue[str]) -> None:
    delays = [queue.retry("a") for _ in range(14)]

    assert delays[:3] == [FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert delays[-1] == LONGEST_DELAY_SECONDS


async def test_a_success_forgets_the_failures(queue: WorkQueue[str]) -> None:
    for _ in range(5):
        queue.retry("a")
    queue.forget("a")

    assert queue.retry("a") == FIRST_DELAY_SECONDS


async def test_retries_are_spread() -> None:
    early, late = WorkQueue[str](spread=lambda: 0.0), WorkQueue[str](spread=lambda: 1.0)

    assert early.retry("a") == late.retry("a") / 2


async def test_many_workers_share_the_keys(queue: WorkQueue[str]) -> None:
    taken: list[str] = []

    async def work() -> None:
        while True:
            key = await queue.get()
            taken.append(key)
            await asyncio.sleep(0)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    await asyncio.sleep(0)
    for number in range(100):
        queue.add(str(number))
    for _ in range(200):
        await asyncio.sleep(0)
    for worker in workers:
        worker.cancel()

    assert sorted(taken, key=int) == [str(number) for number in range(100)]
    assert queue.idle


async def test_a_waiting_worker_wakes_for_a_key_that_is_due_sooner(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("late", 1000)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)

    queue.add_after("soon", 0.01)
    clock.now = 0.02

    assert await asyncio.wait_for(waiting, 5) == "soon"
