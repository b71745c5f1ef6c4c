"""What every sandbox provider must do, as checks for any test suite: `for check in CHECKS: await check(bench)`.

Each check is independent and leaves nothing behind; a failure is an AssertionError. It tests the contract of
`provider.py` through a real tool server, and nothing that only one provider can promise (such as the network).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from towline.errors import SandboxFailed
from towline.sandbox.guest import Answer, Guest
from towline.sandbox.provider import Loss, SandboxProvider, SandboxRequest

SECONDS = 60.0
"""Bound on everything that a check waits for; a pod may have to be scheduled first."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A provider to be checked, and what is particular to it."""

    provider: SandboxProvider
    request: Callable[[], SandboxRequest]
    """A request under a fresh name, with a fresh key and a fresh volume that outlives the sandbox."""
    kill: Callable[[str], Awaitable[None]]
    """Ends a sandbox's first process from outside, as a crash would."""


Check = Callable[[Bench], Awaitable[None]]


async def a_created_sandbox_proves_its_key_and_runs_commands(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    try:
        assert handle.name == request.name
        async with Guest(handle.endpoint, request.key) as guest:
            assert (await guest.call("a", "exec", command="echo hello"))["text"] == "hello\n"
            assert (await guest.call("b", "write_file", path="f", content="text"))["outcome"] == "ok"
            assert (await guest.call("c", "read_file", path="f"))["text"] == "text"
    finally:
        await bench.provider.destroy(request.name)


async def another_key_opens_nothing(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    stranger = Guest(handle.endpoint, bench.request().key)
    try:
        assert isinstance(await _fault(stranger.hello()), ValueError), "the proof was accepted under another key"
        refused = await _fault(stranger.call("a", "exec", command="true"))
        assert isinstance(refused, Answer), "a call was run without the key"
        assert refused.status == 401
    finally:
        stranger.close()
        await bench.provider.destroy(request.name)


async def the_key_is_in_no_place_that_a_command_can_read(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    try:
        async with Guest(handle.endpoint, request.key) as guest:
            look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; head -c 1 /proc/1/mem 2>&1; id -u"
            text = (await guest.call("a", "exec", command=look))["text"]
            assert request.key not in text
            assert text.split()[-1] != "0", "commands run as root"
    finally:
        await bench.provider.destroy(request.name)


async def creating_again_or_at_once_gives_the_same_sandbox(bench: Bench) -> None:
    request = bench.request()
    try:
        first, second = await asyncio.gather(bench.provider.create(request), bench.provider.create(request))
        instance = await _instance(first.endpoint, request.key)
        assert first == second == await bench.provider.create(request)
        assert await bench.provider.endpoint(request.name) == first.endpoint
        assert await _instance(first.endpoint, request.key) == instance
    finally:
        await bench.provider.destroy(request.name)


async def the_same_name_for_something_else_is_refused(bench: Bench) -> None:
    request = bench.request()
    await bench.provider.create(request)
    try:
        await _refused("NameTaken", bench.provider.create(replace(request, key=bench.request().key)))
    finally:
        await bench.provider.destroy(request.name)


async def a_suspended_sandbox_comes_back_with_its_files_as_another_instance(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    try:
        async with Guest(handle.endpoint, request.key) as guest:
            before = (await guest.hello())["instance"]
            await guest.call("a", "write_file", path="kept", content="text")
        lost = asyncio.create_task(bench.provider.wait_lost(request.name))
        await bench.provider.suspend(request.name)
        assert (await _soon(lost)).reason == "Suspended"
        await bench.provider.suspend(request.name)
        await _refused("Unknown", bench.provider.endpoint(request.name))
        resumed = await bench.provider.resume(request.name)
        assert await bench.provider.resume(request.name) == resumed == await bench.provider.create(request)
        async with Guest(resumed.endpoint, request.key) as guest:
            assert (await guest.hello())["instance"] != before
            assert (await guest.call("a", "read_file", path="kept"))["text"] == "text"
    finally:
        await bench.provider.destroy(request.name)


async def a_destroyed_sandbox_is_gone_and_forgotten(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    lost = asyncio.create_task(bench.provider.wait_lost(request.name))
    await asyncio.sleep(0)  # the wait has begun
    await bench.provider.destroy(request.name)
    assert (await _soon(lost)).reason == "Destroyed"
    assert isinstance(await _fault(_instance(handle.endpoint, request.key)), OSError | EOFError), "it still answers"
    for gone in (bench.provider.endpoint, bench.provider.suspend, bench.provider.resume):
        await _refused("Unknown", gone(request.name))
    await bench.provider.destroy(request.name)


async def a_name_that_never_was_is_no_trouble(bench: Bench) -> None:
    name = bench.request().name
    await bench.provider.destroy(name)
    await _soon(asyncio.create_task(bench.provider.wait_lost(name)))
    for unknown in (bench.provider.endpoint, bench.provider.suspend, bench.provider.resume):
        await _refused("Unknown", unknown(name))


async def a_death_is_reported_and_the_name_can_be_made_anew(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    try:
        before = await _instance(handle.endpoint, request.key)
        abandoned = asyncio.create_task(bench.provider.wait_lost(request.name))
        waits = [asyncio.create_task(bench.provider.wait_lost(request.name)) for _ in range(2)]
        await asyncio.sleep(0)  # the waits have begun
        abandoned.cancel()
        await bench.kill(request.name)
        for wait in waits:
            loss = await _soon(wait)
            assert loss.reason not in ("Suspended", "Destroyed", "")
            assert loss.message
        await _refused("Unknown", bench.provider.endpoint(request.name))
        handle = await bench.provider.create(request)
        assert await _instance(handle.endpoint, request.key) != before
    finally:
        await bench.provider.destroy(request.name)


async def what_a_command_leaves_running_ends_with_the_sandbox(bench: Bench) -> None:
    request = bench.request()
    handle = await bench.provider.create(request)
    guest = Guest(handle.endpoint, request.key)
    try:
        await guest.hello()
        call = asyncio.create_task(guest.call("a", "exec", command="setsid sleep 600 & sleep 601"))
        async with Guest(handle.endpoint, request.key) as other, asyncio.timeout(SECONDS):
            while (await other.ask("GET", "/v1/health"))["running"] == 0:
                pass
        await asyncio.wait_for(bench.provider.destroy(request.name), SECONDS)
        assert isinstance(await _fault(call), OSError | EOFError)
    finally:
        guest.close()
        await bench.provider.destroy(request.name)


CHECKS: tuple[Check, ...] = (
    a_created_sandbox_proves_its_key_and_runs_commands,
    another_key_opens_nothing,
    the_key_is_in_no_place_that_a_command_can_read,
    creating_again_or_at_once_gives_the_same_sandbox,
    the_same_name_for_something_else_is_refused,
    a_suspended_sandbox_comes_back_with_its_files_as_another_instance,
    a_destroyed_sandbox_is_gone_and_forgotten,
    a_name_that_never_was_is_no_trouble,
    a_death_is_reported_and_the_name_can_be_made_anew,
    what_a_command_leaves_running_ends_with_the_sandbox,
)


async def _instance(endpoint: str, key: str) -> str:
    async with Guest(endpoint, key) as guest:
        return str((await guest.hello())["instance"])


async def _refused(reason: str, call: Awaitable[object]) -> None:
    fault = await _fault(call)
    assert isinstance(fault, SandboxFailed), f"expected SandboxFailed({reason}), got {fault!r}"
    assert fault.reason == reason, f"expected {reason}, got {fault}"


async def _fault(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except Exception as fault:  # whatever it is, the check judges it
        return fault
    return None


async def _soon(task: asyncio.Task[Loss]) -> Loss:
    return await asyncio.wait_for(task, SECONDS)
