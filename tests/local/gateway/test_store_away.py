"""The event store goes away in mid-call: nothing is executed twice, no result is lost, and it is said who is away."""

import asyncio
import signal
import subprocess

import pytest


@pytest.fixture
def valkey_url(valkey_binary, tmp_path):
    """A server of this test's own, to be frozen and killed."""
    socket = tmp_path / "own.sock"
    arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--appendonly", "yes"]
    servers = []

    def start():
        servers.append(subprocess.Popen([valkey_binary, *arguments], stdout=subprocess.DEVNULL))

    start()
    while not socket.exists():
        assert servers[0].poll() is None
    yield f"unix://{socket}"
    servers[-1].send_signal(signal.SIGCONT)
    servers[-1].kill()
    servers[-1].wait()


@pytest.fixture
def server_pid(valkey_url, world):
    async def pid():
        return (await world.store.client.info("server"))["process_id"]

    return pid


async def test_a_result_waits_for_the_store_to_come_back(world, server_pid):
    gateway = await world.gateway()
    call = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    pid = await server_pid()

    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    sandbox.release("a")
    done, _ = await asyncio.wait([call], timeout=1.0)
    subprocess.run(["kill", "-CONT", str(pid)], check=True)

    assert not done
    assert (await call).text == "held a"
    assert sandbox.executions == ["tc_1"]
    assert len(await world.results()) == 1


async def test_a_store_that_hangs_is_no_fault_of_the_gateway(world, server_pid):
    gateway = await world.gateway()
    pid = await server_pid()

    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    async with world.http.get(f"http://127.0.0.1:{gateway.port}/readyz") as response:
        status, said = response.status, await response.text()
    subprocess.run(["kill", "-CONT", str(pid)], check=True)

    assert (status, "the store gave no answer" in said) == (503, True)
    async with world.http.get(f"http://127.0.0.1:{gateway.port}/readyz") as response:
        assert response.status == 200
