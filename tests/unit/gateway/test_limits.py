import asyncio

import pytest

from towline.gateway.limits import Busy, Places


def test_a_run_may_hold_its_calls_and_its_queue_and_no_more():
    places = Places().of_run(at_once=2, queued=1)
    for _ in range(3):
        places.enter()

    with pytest.raises(Busy) as caught:
        places.enter()
    places.leave()
    places.enter()

    assert caught.value.run
    places.enter(ending=True)  # what ends a call makes room, so it is never refused


def test_all_runs_together_are_bounded_and_that_is_not_this_runs_fault():
    places = Places(in_all=2)
    one, two = places.of_run(), places.of_run()
    one.enter()
    two.enter()

    with pytest.raises(Busy) as caught:
        two.enter()

    assert not caught.value.run
    assert (two.taken, places.taken) == (1, 2)


async def test_calls_above_the_limit_wait_for_their_turn():
    places = Places().of_run(at_once=2)
    running: list[int] = []
    most = 0
    go_on = asyncio.Event()

    async def call(number: int) -> None:
        nonlocal most
        await places.begin()
        running.append(number)
        most = max(most, len(running))
        await go_on.wait()
        running.remove(number)
        places.end()

    calls = [asyncio.create_task(call(number)) for number in range(5)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*calls)

    assert most == 2
