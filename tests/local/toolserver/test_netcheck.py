"""The proof that the network is closed, against sockets that a test opens and closes."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.local.toolserver.running import KEY, running
from towline.sandbox.guest import Answer, Guest
from towline.toolserver import netcheck
from towline.toolserver.netcheck import ASK_DNS, EXIT_CODE, NotEnforced, parse_destinations, prove


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener


def tcp(listener: socket.socket) -> str:
    return f"tcp:127.0.0.1:{listener.getsockname()[1]}"


def closed_port() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        return tcp(gone)


async def test_refusal_and_silence_both_count_as_closed() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silence = f"udp:127.0.0.1:{silent.getsockname()[1]}"
        begun = asyncio.get_running_loop().time()

        await prove(parse_destinations(f"{closed_port()},{silence}", ""), 5)

        # The second round begins 100 ms after the first, and waits 150 ms for the silent one.
        assert 0.25 <= asyncio.get_running_loop().time() - begun < 3
        assert [silent.recv(512), silent.recv(512)] == [ASK_DNS, ASK_DNS]


async def test_the_next_round_does_not_wait_for_the_answers_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netcheck, "ANSWER_SECONDS", 60.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.settimeout(10)
        port = silent.getsockname()[1]
        proving = asyncio.create_task(prove(parse_destinations(f"udp:127.0.0.1:{port}", ""), 5))

        for _ in range(2):
            assert await asyncio.to_thread(silent.recv, 512) == ASK_DNS

        assert not proving.done()
        proving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await proving


async def test_what_stays_open_is_named_when_the_time_is_up(listener: socket.socket) -> None:
    destinations = parse_destinations(f"{closed_port()},{tcp(listener)}", "")

    with pytest.raises(NotEnforced, match=f"after 0.2 s the sandbox still reaches {tcp(listener)}$"):
        await prove(destinations, 0.2)


async def test_a_name_server_that_answers_is_open() -> None:
    class NameServer(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
            self.transport.sendto(data[:2] + b"\x80\x05", sender)  # type: ignore[attr-defined]

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    try:
        with pytest.raises(NotEnforced, match=f"udp:127.0.0.1:{port}"):
            await prove(parse_destinations(f"udp:127.0.0.1:{port}", ""), 0.1)
    finally:
        transport.close()


async def test_it_waits_for_two_closed_rounds_after_the_last_open_one(listener: socket.socket) -> None:
    destinations = parse_destinations(tcp(listener), "")
    proving = asyncio.create_task(prove(destinations, 10))
    for _ in range(2):  # two rounds have found it open
        connection, _ = await asyncio.wait_for(asyncio.to_thread(listener.accept), 60)
        connection.close()
    assert not proving.done()

    listener.close()

    await asyncio.wait_for(proving, 60)


async def test_running_out_of_descriptors_is_no_proof() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, hard))
        try:
            # More than there are gaps below the limit.
            with pytest.raises(OSError, match="Too many open files"):
                await prove(parse_destinations(",".join(f"tcp:127.0.0.1:{port}" for port in range(1, 200)), ""), 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_until_the_proof_nobody_learns_the_instance_and_no_call_is_taken(
    tmp_path: Path, listener: socket.socket
) -> None:
    async with running(tmp_path / "v", environment={"TOWLINE_FORBIDDEN": tcp(listener)}, proved=False) as server:
        for _ in range(2):
            with pytest.raises(Answer) as refused:
                await server.guest.hello()
            assert refused.value.status == 503
            assert refused.value.body["error"] == "NetworkNotProved"
        with pytest.raises(Answer) as refused:
            await server.run("exec", command="true")
        assert refused.value.status == 503
        assert (await server.guest.ask("GET", "/v1/health", authorized=False))["status"] == "ok"

        listener.close()

        async def proved() -> None:
            while True:
                try:
                    await server.guest.hello()
                    return
                except Answer:
                    await asyncio.sleep(0.01)

        await asyncio.wait_for(proved(), 60)
        assert (await server.exec("echo hello"))["text"] == "hello\n"


async def test_an_open_network_ends_the_tool_server_with_the_reason(tmp_path: Path, listener: socket.socket) -> None:
    environment = {"TOWLINE_FORBIDDEN": tcp(listener), "TOWLINE_NETCHECK_SECONDS": "1"}
    said = tmp_path / "said"
    with said.open("wb") as stderr:
        async with running(tmp_path / "v", environment=environment, proved=False, stderr=stderr) as server:
            assert await asyncio.wait_for(asyncio.to_thread(server.process.wait), 60) == EXIT_CODE
            with pytest.raises(OSError):
                await Guest(server.endpoint, KEY).hello()
    assert said.read_text() == (
        "towline tool server: the network policy is not in force: "
        f"after 1 s the sandbox still reaches {tcp(listener)}\n"
    )
