"""No call runs in a sandbox that still reaches what it must not: the true tool server, and a socket in its reach."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from towline.api.snapshot import Sandbox
from towline.clock import utc_now
from towline.events import sandbox as sandbox_events
from towline.events.sandbox import SandboxRecord
from towline.naming import sandbox_key, sandbox_name
from towline.toolserver.netcheck import EXIT_CODE


@pytest.fixture
def forbidden():
    """A socket that the network policy would have to close."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener


@asynccontextmanager
async def a_sandbox(world, forbidden: socket.socket, folder: Path, *, seconds: int) -> AsyncIterator[object]:
    """The run's first sandbox, recorded as Ready, while its tool server still looks at its network."""
    world.operator.answers_wants = False
    name, path = sandbox_name(world.run.uid, 1), folder / "tool.sock"
    (folder / "volume").mkdir()
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "towline.toolserver"),
        env={
            "TOWLINE_LISTEN": f"unix:{path}",
            "TOWLINE_SANDBOX_NAME": name,
            "TOWLINE_SANDBOX_KEY": sandbox_key(world.secret, name),
            "TOWLINE_VOLUME": str(folder / "volume"),
            "TOWLINE_FORBIDDEN": f"tcp:127.0.0.1:{forbidden.getsockname()[1]}",
            "TOWLINE_NETCHECK_SECONDS": str(seconds),
            "PATH": os.defpath,
            "PYTHONPATH": ":".join(sys.path),
        },
    )
    try:
        await sandbox_events.want(world.store, world.run, "tc_0", now=utc_now())
        record = SandboxRecord(name, "Ready", f"unix:{path}", "pod", "", "", 1)
        await sandbox_events.mark_ready(world.store, world.run, 1, record, ms=1, start="cold", now=utc_now())
        yield server
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def tried(forbidden: socket.socket, times: int = 2) -> None:
    """The tool server has found it open this often."""
    for _ in range(times):
        connection, _ = await asyncio.wait_for(asyncio.to_thread(forbidden.accept), 60)
        connection.close()


async def test_a_call_is_held_until_the_network_is_closed(world, forbidden, tmp_path):
    async with a_sandbox(world, forbidden, tmp_path, seconds=60):
        gateway = await world.gateway()
        call = asyncio.create_task(world.call(gateway, "exec", {"command": "echo hello"}))
        await tried(forbidden)
        assert not call.done()

        forbidden.close()

        answer = await asyncio.wait_for(call, 60)
        assert (answer.outcome, answer.text) == ("ok", "hello\n")


async def test_a_network_that_stays_open_is_named_when_the_start_takes_too_long(world_of, forbidden, tmp_path):
    world = await world_of(sandbox=Sandbox(start_timeout_seconds=2))
    async with a_sandbox(world, forbidden, tmp_path, seconds=60):
        answer = await world.call(await world.gateway(), "exec", {"command": "touch ran"})

    assert answer.outcome == "error"
    assert "PolicyNotEnforced" in answer.text
    assert not (tmp_path / "volume" / "workspace" / "ran").exists()


async def test_the_operators_verdict_ends_the_call_and_asks_for_no_other_sandbox(world, forbidden, tmp_path):
    async with a_sandbox(world, forbidden, tmp_path, seconds=1) as server:
        call = asyncio.create_task(world.call(await world.gateway(), "exec", {"command": "true"}))
        assert await asyncio.wait_for(server.wait(), 60) == EXIT_CODE
        name = sandbox_name(world.run.uid, 1)
        await sandbox_events.mark_lost(
            *(world.store, world.run, 1, name, "PolicyNotEnforced", "it reaches the store"),
            now=utc_now(),
            state="Failed",
        )

        answer = await asyncio.wait_for(call, 60)

    assert answer.outcome == "error"
    assert "PolicyNotEnforced" in answer.text
    assert "it reaches the store" in answer.text
    assert len(await world.events("sandbox.requested")) == 1
