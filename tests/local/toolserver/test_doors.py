"""Who may come in, and what a hostile or careless peer can do: nothing, for a short while."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.toolserver.running import KEY, Running, running
from towline.sandbox.guest import Answer, Guest, read_answer


async def dial(server: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(server.endpoint.removeprefix("unix:"))


async def raw(server: Running, request: bytes) -> tuple[int, bool]:
    """Status of the answer, and whether the connection was closed after it."""
    reader, writer = await dial(server)
    try:
        async with asyncio.timeout(60):
            writer.write(request)
            status, _ = await read_answer(reader)
            writer.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                again, _ = await read_answer(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return status, True
            assert again == 200
            return status, False
    finally:
        writer.close()


async def test_the_hello_is_complete_and_proves_the_key(server: Running) -> None:
    said = await server.guest.hello()
    assert set(said) == {"protocol", "instance", "proof", "workspace", "shell", "seeded", "fresh"}
    assert said["protocol"] == 1
    assert said["workspace"] == str(server.workspace)
    assert said["shell"] == "/bin/sh"
    stranger = Guest(server.endpoint, KEY[::-1])
    with pytest.raises(ValueError, match="does not hold the key"):
        await stranger.hello()
    stranger.close()


async def test_without_the_key_nothing_is_answered_but_401(server: Running) -> None:
    for authorization in ("", "Towline ", "Towline " + "0" * 64, "Bearer x", "Towline " + KEY):
        header = f"Authorization: {authorization}\r\n" if authorization else ""
        for path in ("/v1/calls/a", "/v1/seed", "/v1/nothing", "/"):
            for method in ("GET", "PUT", "POST", "DELETE"):
                request = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 2\r\n\r\n{{}}"
                assert await raw(server, request.encode()) == (401, True)


async def test_what_was_shown_to_another_instance_is_worthless(server: Running, tmp_path: Path) -> None:
    async with running(tmp_path / "other") as other:
        server.guest.authorization = other.guest.authorization
        with pytest.raises(Answer, match="401"):
            await server.guest.call("a", "exec", command="true")


async def test_a_stranger_cannot_make_the_server_read_a_body(server: Running) -> None:
    head = b"PUT /v1/calls/a HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
    assert (await raw(server, head))[0] == 401
    for route in (b"POST /v1/hello", b"GET /v1/health"):
        assert (await raw(server, head.replace(b"PUT /v1/calls/a", route))) == (413, True)


async def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_taken(server: Running) -> None:
    content = "x" * (4 * 1024 * 1024 - 200)
    assert (await server.run("write_file", path="big", content=content))["outcome"] == "ok"
    assert (server.workspace / "big").stat().st_size == len(content)
    with pytest.raises(Answer, match="413"):
        await server.run("write_file", path="big", content=content + "x" * 300)


@pytest.mark.parametrize("nonce", [None, 5, "", "short", "zz" * 16])
async def test_a_hello_without_a_proper_nonce_is_refused(server: Running, nonce: object) -> None:
    with pytest.raises(Answer, match="400"):
        await server.guest.ask("POST", "/v1/hello", {"nonce": nonce}, authorized=False)


async def test_unknown_paths_and_methods_are_told_apart(server: Running) -> None:
    for method, path, status in [
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/calls/", 404),
        ("PUT", "/v1/calls/a%20b", 404),
        ("PUT", "/v1/calls/" + "a" * 41, 404),
        ("PUT", "/v1/calls/../calls/a", 404),
        ("PUT", "/v1/calls/a?x=1", 404),
        ("GET", "/v1/calls/a", 405),
        ("GET", "/v1/hello", 405),
        ("POST", "/v1/health", 405),
    ]:
        with pytest.raises(Answer, match=str(status)):
            await server.guest.ask(method, path)


async def test_malformed_requests_are_refused_and_the_connection_closed(server: Running) -> None:
    for request, status in [
        (b"\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /v1/health HTTP/1.0\r\nHost: x\r\n\r\n", 505),
        (b"GET http://x/v1/health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000, 431),
        (b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413),
    ]:
        assert await raw(server, request) == (status, True), request


async def test_requests_that_arrive_together_are_answered_in_turn(server: Running) -> None:
    reader, writer = await dial(server)
    writer.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
    async with asyncio.timeout(60):
        assert [(await read_answer(reader))[0] for _ in range(50)] == [200] * 50
    writer.close()


async def test_a_request_may_arrive_byte_by_byte(server: Running) -> None:
    reader, writer = await dial(server)
    for byte in b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert (await read_answer(reader))[0] == 200
    writer.close()


async def test_a_crowd_of_strangers_does_not_lock_the_gateway_out(server: Running) -> None:
    await server.exec("true")
    crowd = [await dial(server) for _ in range(150)]
    try:
        async with server.another_guest() as late:
            assert (await late.call("late", "exec", command="echo hi"))["text"] == "hi\n"
        assert (await server.exec("echo still"))["text"] == "still\n"
        if os.getuid() == 0:  # it is closed to anybody else
            assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 90
    finally:
        for _, writer in crowd:
            writer.close()


async def test_a_silent_stranger_is_closed_after_five_seconds_and_may_dial_anew(server: Running) -> None:
    reader, writer = await dial(server)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()

    assert (await server.exec("echo hi"))["text"] == "hi\n", "whose connection had said hello and no more"


async def test_a_call_is_waited_for_as_long_as_it_may_take(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.sandbox.guest.SECONDS", 0.1)

    result = await server.guest.call("a", "exec", timeout_seconds=30, command="sleep 0.3; echo hi")

    assert result["text"] == "hi\n"


async def test_the_server_is_small_and_has_one_thread(server: Running) -> None:
    await server.run("search", pattern="x")
    assert server.status("Threads") == 1
    assert server.status("VmRSS") < 25 * 1024


@pytest.mark.skipif(os.getuid() != 0, reason="the tool server shows its descriptors to root alone")
async def test_what_its_starter_left_open_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "left-open").open("w") as left:
        os.set_inheritable(left.fileno(), True)
        async with running(tmp_path / "v", left_open=(left.fileno(),)) as server:
            folder = Path(f"/proc/{server.process.pid}/fd")
            assert str(tmp_path / "left-open") not in {os.readlink(each) for each in folder.iterdir()}


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is closed to root")
async def test_the_server_is_closed_to_others_of_its_own_user(server: Running) -> None:
    for name in ("environ", "mem", "maps", "auxv"):
        with pytest.raises(PermissionError):
            Path(f"/proc/{server.process.pid}/{name}").read_bytes()
    with pytest.raises(PermissionError):
        os.listdir(f"/proc/{server.process.pid}/fd")


def test_wrong_settings_end_it_with_every_fault(tmp_path: Path) -> None:
    program = (sys.executable, "-m", "towline.toolserver")
    ended = subprocess.run(program, env={"TOWLINE_SANDBOX_KEY": "secret"}, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert "TOWLINE_LISTEN" in ended.stderr
    assert "TOWLINE_SANDBOX_KEY" in ended.stderr
    assert "secret" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_volume_that_cannot_be_used_ends_it_with_the_cause(tmp_path: Path) -> None:
    """As a server of files that knows no fsGroup shows it; but root, who runs the tests, may write anywhere."""
    volume = tmp_path / "volume"
    volume.touch()
    given = {"TOWLINE_LISTEN": f"unix:{tmp_path}/s", "TOWLINE_SANDBOX_KEY": KEY, "TOWLINE_VOLUME": str(volume)}

    program = (sys.executable, "-m", "towline.toolserver")
    ended = subprocess.run(program, env=given, capture_output=True, text=True, timeout=20)

    assert ended.returncode == 1
    assert re.fullmatch(
        rf"towline tool server: the volume cannot be used by user {os.geteuid()} with the groups \[.*\]: "
        rf"\[Errno 20\] Not a directory: '{volume}/workspace'\n",
        ended.stderr,
    )


async def test_it_listens_on_tcp_too(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        (sys.executable, "-m", "towline.toolserver"),
        env={"TOWLINE_LISTEN": f"tcp:127.0.0.1:{port}", "TOWLINE_SANDBOX_KEY": KEY, "TOWLINE_VOLUME": str(tmp_path)},
    )
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    async with Guest(f"http://127.0.0.1:{port}", KEY) as guest:
                        assert (await guest.call("a", "exec", command="echo hi"))["text"] == "hi\n"
                    return
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
    finally:
        process.kill()
        process.wait()


async def test_it_ends_with_the_process_that_holds_its_lifeline(tmp_path: Path) -> None:
    held, lifeline = os.pipe()
    try:
        async with running(tmp_path / "v", environment={"TOWLINE_LIFELINE": f"fd:{held}"}, left_open=(held,)) as server:
            assert (await server.exec("ls /proc/$$/fd"))["text"].split() == ["0", "1", "2"]
            assert server.process.poll() is None
            os.close(lifeline)
            async with asyncio.timeout(60):
                while server.process.poll() is None:
                    await asyncio.sleep(0.01)
    finally:
        os.close(held)
