import asyncio

import pytest

from towline.errors import RunCancelled, SandboxFailed
from towline.gateway.interrupt import Interrupt

LATE = SandboxFailed("Late", "too late")
FOREVER = 3600.0


async def test_a_wait_ends_at_its_deadline_with_the_reason_for_that():
    with pytest.raises(SandboxFailed, match="too late"):
        async with Interrupt().within(0.01, LATE):
            await asyncio.Event().wait()


async def test_a_wait_is_cut_at_once_for_the_first_cause():
    interrupt = Interrupt()
    asyncio.get_running_loop().call_soon(interrupt.raise_for, RunCancelled("enough"))
    asyncio.get_running_loop().call_soon(interrupt.raise_for, SandboxFailed("Lost", "gone"))

    with pytest.raises(RunCancelled, match="enough"):
        async with interrupt.within(FOREVER, LATE):
            await asyncio.Event().wait()


async def test_a_cause_given_before_the_wait_ends_it_before_it_begins():
    interrupt = Interrupt()
    interrupt.raise_for(RunCancelled("enough"))

    with pytest.raises(RunCancelled):
        async with interrupt.within(FOREVER, LATE):
            pytest.fail("the wait began")


async def test_what_ends_within_the_grace_is_not_cut():
    interrupt, ending = Interrupt(), asyncio.Event()

    async with interrupt.within(FOREVER, LATE):
        interrupt.raise_for(RunCancelled("enough"), grace_seconds=FOREVER)
        asyncio.get_running_loop().call_soon(ending.set)
        await ending.wait()
    interrupt.check()

    interrupt.raise_for(RunCancelled("at once"))
    with pytest.raises(RunCancelled, match="enough"):
        interrupt.check()


async def test_what_has_to_be_ended_first_may_take_its_time():
    interrupt = Interrupt()
    interrupt.raise_for(RunCancelled("enough"))

    interrupt.allow(FOREVER)

    async with interrupt.within(FOREVER, LATE):
        await asyncio.sleep(0)
    interrupt.allow(0.01)
    with pytest.raises(RunCancelled, match="enough"):
        async with interrupt.within(FOREVER, LATE):
            await asyncio.Event().wait()


async def test_a_grace_never_makes_a_wait_longer():
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: interrupt.raise_for(RunCancelled("enough"), grace_seconds=FOREVER))

    with pytest.raises(RunCancelled):
        async with interrupt.within(0.01, LATE):
            await asyncio.Event().wait()


async def test_a_timeout_of_the_work_itself_passes_as_it_is():
    with pytest.raises(TimeoutError, match="its own"):
        async with Interrupt().within(FOREVER, LATE):
            raise TimeoutError("its own")
