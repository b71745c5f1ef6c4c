"""One call is cancelled: in every state, through both faces, at a gateway that executes it and at one that does not."""

import asyncio
import json
import os
from pathlib import Path

import aiohttp
import pytest

from towline.clock import utc_now
from towline.events import calls as ledger
from towline.events import live
from towline.events import sandbox as sandbox_events
from towline.events.sandbox import SandboxRecord
from towline.naming import CANCEL_META, sandbox_key, sandbox_name
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import build_bundle
from towline.sandbox.provider import SandboxRequest

FACES = ["2026-07-28", "2025-11-25"]
"""The fast path, and the SDK's server."""


@pytest.fixture(params=FACES)
def ask(request, world):
    """One request for the call tc_1, through one of the faces."""

    async def ask(gateway, command, *, cancel=True, **options):
        meta = {CANCEL_META: True} if cancel else {}
        arguments = {"command": command}
        if request.param == FACES[0]:
            return await world.call(gateway, "exec", arguments, call_id="tc_1", meta=meta, **options)
        meta["towline.dev/call-id"] = "tc_1"
        params = {"name": "exec", "arguments": arguments, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return await world.post(
            gateway, json.dumps(body).encode(), headers={"MCP-Protocol-Version": FACES[1]}, **options
        )

    return ask


async def began(world, gateway, command="hold a", call_id="tc_1"):
    """The task of a call that the sandbox has begun to execute, and the sandbox."""
    call = asyncio.create_task(world.call(gateway, "exec", {"command": command}, call_id=call_id))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    return call, sandbox


async def waits_for_a_sandbox(world, gateway):
    world.operator.answers_wants = False
    call = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1"))
    async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
        while not await world.events("sandbox.requested"):
            await watch.wait(1)
    return call


def said(answer):
    """What a model is told; the generations of MCP differ around it."""
    return answer.outcome, answer.text


async def outcomes(world):
    return [each["outcome"] for each in await world.results()]


async def test_a_call_that_never_came_is_recorded_as_cancelled_and_never_runs(world, ask):
    gateway = await world.gateway()

    cancelled = await ask(gateway, "echo 1")
    late = await ask(gateway, "echo 1", cancel=False)

    assert (cancelled.outcome, cancelled.text) == ("cancelled", "[cancelled before it began]")
    assert said(late) == said(cancelled)
    assert [event.type for event in await world.events("agent.tool_use", "agent.tool_result")] == [
        "agent.tool_use",
        "agent.tool_result",
    ]
    assert world.operator.sandboxes == []


async def test_a_running_call_is_killed_and_both_callers_get_its_one_result(world, ask):
    gateway = await world.gateway()
    call, sandbox = await began(world, gateway)

    cancelled = await ask(gateway, "hold a")

    assert cancelled.outcome == "cancelled"
    assert (await call).text == cancelled.text
    assert sandbox.executions == ["tc_1"]
    assert await outcomes(world) == ["cancelled"]


async def test_a_call_that_has_ended_keeps_its_result(world, ask):
    gateway = await world.gateway()
    done = await world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1")

    assert said(await ask(gateway, "echo 1")) == said(done)
    assert await outcomes(world) == ["ok"]


async def test_a_call_that_waits_for_a_sandbox_ends_at_once(world, ask):
    gateway = await world.gateway()
    call = await waits_for_a_sandbox(world, gateway)

    cancelled = await ask(gateway, "echo 1")

    assert cancelled.text == "[cancelled before it began]"
    assert said(await call) == said(cancelled)
    assert await outcomes(world) == ["cancelled"]


async def test_a_call_that_waits_for_its_turn_is_cancelled_without_one(world, ask):
    gateway = await world.gateway()
    running = [await began(world, gateway, f"hold {n}", f"tc_r{n}") for n in range(8)]
    queued = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1"))
    while len(world_executions(world)) < 8:
        await asyncio.sleep(0.01)

    cancelled = await ask(gateway, "echo 1")

    assert cancelled.outcome == "cancelled"
    assert said(await queued) == said(cancelled)
    for n, (call, sandbox) in enumerate(running):
        sandbox.release(str(n))
        assert (await call).outcome == "ok"
    assert "tc_1" not in world_executions(world)


def world_executions(world):
    return world.operator.sandbox.executions


async def test_a_call_that_runs_at_another_gateway_is_killed_through_this_one(world, ask):
    one, two = await world.gateway(), await world.gateway()
    call, sandbox = await began(world, one)

    cancelled = await ask(two, "hold a")

    assert cancelled.outcome == "cancelled"
    assert said(await call) == said(cancelled)
    assert sandbox.executions == ["tc_1"]
    assert await outcomes(world) == ["cancelled"]


async def test_a_call_that_waits_at_another_gateway_hears_of_its_end(world, ask):
    one, two = await world.gateway(), await world.gateway()
    call = await waits_for_a_sandbox(world, one)

    cancelled = await ask(two, "echo 1")

    assert said(await asyncio.wait_for(call, 60)) == said(cancelled)
    world.operator.answers_wants = True
    assert (await world.call(two, "exec", {"command": "echo 2"}, call_id="tc_2")).text == "2"
    assert world.operator.sandbox.executions == ["tc_2"]


async def test_a_call_whose_gateway_died_is_killed_by_the_next(world, ask):
    killed = await world.gateway_process()
    call, sandbox = await began(world, killed)
    await killed.kill()
    with pytest.raises(aiohttp.ClientError):
        await call

    cancelled = await ask(await world.gateway(), "hold a")

    assert cancelled.outcome == "cancelled"
    assert await ledger.open_calls(world.store, world.run) == []
    assert ("DELETE", "/v1/calls/tc_1") in [(method, path) for method, path, _, _ in sandbox.requests]
    async with asyncio.timeout(60):
        await asyncio.gather(*sandbox.results.values())


async def test_a_call_cancelled_in_a_sandbox_that_hangs_is_settled_all_the_same(world, ask, monkeypatch):
    monkeypatch.setattr("towline.gateway.bound_run.CANCEL_SECONDS", 0.1)
    gateway = await world.gateway()
    call, sandbox = await began(world, gateway)
    sandbox.hangs = True

    cancelled = await ask(gateway, "hold a")

    assert cancelled.outcome == "cancelled"
    assert said(await call) == said(cancelled)


async def test_a_call_that_another_gateway_gave_to_a_tool_server_that_hangs_is_cancelled_all_the_same(
    world, ask, monkeypatch
):
    monkeypatch.setattr("towline.gateway.bound_run.CANCEL_SECONDS", 0.1)
    monkeypatch.setattr("towline.gateway.sandbox_client.CONTROL_SECONDS", 600.0)
    monkeypatch.setattr("towline.gateway.lease.TRUSTED_SECONDS", 0.0)
    gateway, dispatch = await world.gateway(), ledger.dispatch
    given = asyncio.Event()

    async def comes_second(store, run, call_id, *, sandbox, instance, known):
        await dispatch(store, run, call_id, sandbox=sandbox, instance="f" * 32)
        world.operator.sandbox.hangs = True
        given.set()
        return await dispatch(store, run, call_id, sandbox=sandbox, instance=instance, known=known)

    monkeypatch.setattr(ledger, "dispatch", comes_second)
    call = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1"))
    await asyncio.wait_for(given.wait(), 60)

    cancelled = await asyncio.wait_for(ask(gateway, "echo 1"), 60)

    assert (cancelled.outcome, cancelled.text) == ("cancelled", "[cancelled]")
    assert said(await call) == said(cancelled)


async def test_a_stale_harness_cancels_nothing_and_other_arguments_are_another_call(world, ask):
    gateway = await world.gateway()
    call, _ = await began(world, gateway)

    assert (await ask(gateway, "hold b")).reason == "CallMismatch"
    assert (await ask(gateway, "hold a", token=world.token(epoch=2))).outcome == "cancelled"
    assert (await ask(gateway, "hold a")).reason == "Fenced"
    await call


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return build_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.mark.parametrize("executes_it", [True, False])
async def test_in_a_real_sandbox_the_whole_tree_of_a_command_is_dead_when_its_cancellation_is_answered(
    world, ask, bundle, tmp_path, executes_it
):
    world.operator.answers_wants = False
    name, volume = sandbox_name(world.run.uid, 1), tmp_path / "volume"
    volume.mkdir()
    provider = LocalSandbox(bundle, tmp_path / "r")
    try:
        handle = await provider.create(SandboxRequest(name=name, key=sandbox_key(world.secret, name), volume=volume))
        await sandbox_events.want(world.store, world.run, "tc_0", now=utc_now())
        record = SandboxRecord(name, "Ready", handle.endpoint, "local", "", "", 1)
        await sandbox_events.mark_ready(world.store, world.run, 1, record, ms=1, start="cold", now=utc_now())
        one, two = await world.gateway(), await world.gateway()
        mark = f"97{os.getpid():07}"
        stubborn = f"trap '' TERM; setsid -f sleep {mark}1; (sleep {mark}2 & sleep {mark}3) & echo begun; sleep {mark}4"
        call = asyncio.create_task(world.call(one, "exec", {"command": stubborn}, call_id="tc_1"))
        async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
            while not await live.read_deltas(world.store, world.run):
                await watch.wait(1)
        assert len(sleeping(mark)) == 4

        async with asyncio.timeout(5):
            cancelled = await ask(one if executes_it else two, stubborn)

        assert sleeping(mark) == []
        assert (cancelled.outcome, cancelled.text.splitlines()[0]) == ("cancelled", "begun")
        assert said(await call) == said(cancelled)
        assert await outcomes(world) == ["cancelled"]
    finally:
        await provider.aclose()


def sleeping(mark):
    """Pids of the processes `sleep <mark>…` of this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"sleep") and words[1].startswith(mark.encode()):
            found.append(folder.name)
    return found
