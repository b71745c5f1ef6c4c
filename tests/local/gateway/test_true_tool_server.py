"""Gateway and the true tool server together: what a model gets for what it asks."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from towline.api.snapshot import WorkspaceFile
from towline.clock import utc_now
from towline.events import live
from towline.events import runs as run_events
from towline.events import sandbox as sandbox_events
from towline.events.sandbox import SandboxRecord
from towline.naming import sandbox_key, sandbox_name


@pytest.fixture
async def gateway(world_of, tmp_path):
    """A gateway of a run whose sandbox is a true tool server process; `.world` is the run's."""
    world = await world_of(workspace=(WorkspaceFile(path="notes/hello.txt", content="one\ntwo\nthree\n"),))
    world.operator.answers_wants = False
    name, socket = sandbox_name(world.run.uid, 1), tmp_path / "tool.sock"
    volume = tmp_path / "volume"
    volume.mkdir()
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "towline.toolserver",
        env={
            "TOWLINE_LISTEN": f"unix:{socket}",
            "TOWLINE_SANDBOX_NAME": name,
            "TOWLINE_SANDBOX_KEY": sandbox_key(world.secret, name),
            "TOWLINE_VOLUME": str(volume),
            "PATH": os.defpath,
            "PYTHONPATH": ":".join(sys.path),
        },
    )
    try:
        await asyncio.wait_for(_dialled(socket), 60)
        await sandbox_events.want(world.store, world.run, "tc_0", now=utc_now())
        record = SandboxRecord(name, "Ready", f"unix:{socket}", "local", "", "", 1)
        await sandbox_events.mark_ready(world.store, world.run, 1, record, ms=1, start="cold", now=utc_now())
        started = await world.gateway()
        started.world, started.server = world, server
        yield started
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()


async def _dialled(socket: Path) -> None:
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


async def said(gateway, tool, **arguments):
    answer = await gateway.world.call(gateway, tool, arguments)
    return answer.outcome, answer.text


async def test_every_tool_does_what_it_says(gateway):
    assert await said(gateway, "exec", command="echo out; echo err >&2") == ("ok", "out\nerr\n")
    assert (await said(gateway, "write_file", path="src/a.py", content="x = 1\n"))[0] == "ok"
    assert (await said(gateway, "edit_file", path="src/a.py", old_text="1", new_text="2"))[0] == "ok"
    assert await said(gateway, "exec", command="cat a.py", cwd="src") == ("ok", "x = 2\n")
    outcome, text = await said(gateway, "read_file", path="notes/hello.txt", offset=2.0, limit=1)
    assert (outcome, "two" in text, "one" in text) == ("ok", True, False)
    outcome, text = await said(gateway, "list_dir", depth=2)
    assert (outcome, "a.py" in text, "hello.txt" in text) == ("ok", True, True)
    outcome, text = await said(gateway, "search", pattern="t[wh]")
    assert (outcome, "two" in text, "three" in text, "one" in text) == ("ok", True, True, False)


async def test_endings_of_commands_are_told_as_a_terminal_would(gateway):
    assert await said(gateway, "exec", command="true") == ("ok", "[no output]")
    assert await said(gateway, "exec", command="echo no; exit 3") == ("ok", "no\n[exit code 3]")
    outcome, text = await said(gateway, "exec", command="echo begun; sleep 60", timeout_seconds=1)
    assert (outcome, text) == ("error", "begun\n[timed out after 1 s]")
    outcome, text = await said(gateway, "exec", command="kill -9 $$")
    assert (outcome, text) == ("ok", "[killed by signal 9]")


async def test_a_search_that_takes_too_long_says_after_which_time_it_was_ended(gateway, monkeypatch):
    monkeypatch.setattr("towline.gateway.tools.FILE_TOOL_SECONDS", 1)
    await said(gateway, "write_file", path="a", content="a" * 40 + "!")

    outcome, text = await said(gateway, "search", pattern="(a+)+$")

    assert (outcome, text) == ("error", "[timed out after 1 s]")


async def test_errors_of_tools_are_results_for_the_model(gateway):
    for tool, arguments in (
        ("read_file", {"path": "missing"}),
        ("read_file", {"path": "../../etc/passwd"}),
        ("edit_file", {"path": "notes/hello.txt", "old_text": "four", "new_text": "x"}),
        ("search", {"pattern": "("}),
    ):
        outcome, text = await said(gateway, tool, **arguments)
        assert (outcome, bool(text)) == ("error", True)


@pytest.mark.parametrize("command", ["seq 200000", "head -c 3000000 /dev/zero", "head -c 500000 /dev/urandom"])
async def test_output_of_any_size_and_kind_stays_one_event(gateway, command):
    outcome, text = await said(gateway, "exec", command=command)

    assert outcome == "ok"
    assert len(text) <= 40_000
    assert "omitted" in text
    (event,) = await gateway.world.events("agent.tool_result")
    assert len(event.data) <= 60 * 1024
    assert event.payload["truncated"] is True


async def test_large_arguments_reach_the_sandbox_whole(gateway):
    content = "0123456789" * 250_000

    assert (await said(gateway, "write_file", path="big.txt", content=content))[0] == "ok"

    assert await said(gateway, "exec", command="wc -c < big.txt") == ("ok", "2500000\n")
    (use, _) = await gateway.world.events("agent.tool_use")
    assert use.payload["input"]["content"] == content


async def test_the_output_of_a_running_command_is_seen_and_its_cancellation_kills_it(gateway):
    world = gateway.world
    call = asyncio.create_task(
        world.call(gateway, "exec", {"command": "echo $$ > pid; echo begun; sleep 600"}, call_id="tc_1")
    )
    async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
        while not await live.read_deltas(world.store, world.run):
            await watch.wait(1)

    await run_events.request_cancel(world.store, world.run, "enough")

    answer = await call
    assert (answer.outcome, answer.text) == ("cancelled", "begun\n[cancelled]")
    pid = (world.folder / "volume" / "workspace" / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


async def test_a_tool_server_that_is_killed_in_mid_call_makes_the_outcome_unknown(gateway):
    world = gateway.world
    command = "echo $$ > pid; echo begun; sleep 600"
    call = asyncio.create_task(world.call(gateway, "exec", {"command": command}, call_id="tc_1"))
    async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
        while not await live.read_deltas(world.store, world.run):
            await watch.wait(1)

    gateway.server.kill()
    await gateway.server.wait()
    # Without a sandbox around it nobody else ends what it ran.
    os.killpg(int((world.folder / "volume" / "workspace" / "pid").read_text()), signal.SIGKILL)
    record = await sandbox_events.read(world.store, world.run)
    await sandbox_events.mark_lost(world.store, world.run, 1, record.name, "OOMKilled", "out of memory", now=utc_now())

    answer = await call
    assert answer.outcome == "unknown"
    assert "OOMKilled" in answer.text


async def test_eight_commands_at_once_all_end(gateway):
    answers = await asyncio.gather(*(said(gateway, "exec", command=f"sleep 0.05; echo {n}") for n in range(24)))

    assert answers == [("ok", f"{n}\n") for n in range(24)]
