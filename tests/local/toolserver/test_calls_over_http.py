"""Calls as the gateway makes them: attach, acknowledge, cancel, stream; and one run per id, always."""

import asyncio
import json
from typing import Any

import pytest

from tests.local.toolserver.running import Running, running, until
from towline.sandbox.guest import Answer

COUNTING = "echo ran >> log; sleep 0.3; echo done"


def runs(server: Running) -> int:
    return len((server.workspace / "log").read_text().splitlines())


async def test_the_same_id_runs_once_while_it_runs_and_afterwards(server: Running) -> None:
    async with server.another_guest() as other:
        first, second = await asyncio.gather(
            server.guest.call("a", "exec", command=COUNTING), other.call("a", "exec", command=COUNTING)
        )
    assert first == second == await server.guest.call("a", "exec", command=COUNTING)
    assert first["text"] == "done\n"
    assert runs(server) == 1


async def test_a_client_that_vanishes_loses_nothing(server: Running) -> None:
    async with server.another_guest() as other:
        vanishing = asyncio.create_task(
            other.call("a", "exec", command="touch up; while [ ! -e go ]; do sleep 0.02; done; echo done")
        )
        await until((server.workspace / "up").exists)
        vanishing.cancel()
        await asyncio.gather(vanishing, return_exceptions=True)
    (server.workspace / "go").touch()
    result = await server.guest.call("a", "exec", command="touch up; while [ ! -e go ]; do sleep 0.02; done; echo done")
    assert (result["outcome"], result["text"]) == ("ok", "done\n")


async def test_another_body_under_the_same_id_is_a_conflict(server: Running) -> None:
    await server.guest.call("a", "exec", command="true")
    for body in (
        {"tool": "exec", "arguments": {"command": "false"}},
        {"tool": "read_file", "arguments": {"path": "x"}},
    ):
        with pytest.raises(Answer, match="409"):
            await server.guest.ask("PUT", "/v1/calls/a", body)


async def test_an_acknowledged_result_is_dropped_and_its_call_not_run_again(server: Running) -> None:
    command = "echo ran >> log"
    body = {"tool": "exec", "arguments": {"command": command}}
    await server.guest.ask("PUT", "/v1/calls/a", body)
    await server.guest.ask("PUT", "/v1/calls/b", body, headers={"Towline-Ack": "zzz, a,,!"})
    await server.guest.ask("PUT", "/v1/calls/b", body)
    assert (await server.guest.call("a", "exec", command=command))["code"] == "ResultDropped"
    assert runs(server) == 2


async def test_output_is_streamed_with_offsets_and_the_result_has_all_of_it(server: Running) -> None:
    command = "printf 'é1'; sleep 0.2; printf '2é'; sleep 0.2; printf 3"
    lines = await server.guest.lines("a", "exec", command=command)
    assert [line["type"] for line in lines] == ["output", "output", "result"]
    assert [(line["offset"], line["text"]) for line in lines[:-1]] == [(0, "é1"), (2, "2é")]
    assert lines[-1]["text"] == "é12é3"


async def test_who_attaches_late_hears_everything_from_the_start(server: Running) -> None:
    command = "echo one; sleep 0.2; touch up; while [ ! -e go ]; do sleep 0.02; done; echo two; sleep 0.2"
    early = asyncio.create_task(server.guest.lines("a", "exec", command=command))
    await until((server.workspace / "up").exists)
    async with server.another_guest() as other:
        late = asyncio.create_task(other.lines("a", "exec", command=command))
        await until(lambda: not late.done())
        (server.workspace / "go").touch()
        assert "".join(line["text"] for line in (await late)[:-1]) == "one\ntwo\n"
    assert (await early)[-1] == (await late)[-1]


async def test_streaming_stops_at_its_limit_and_lines_stay_small(server: Running) -> None:
    lines = await server.guest.lines("a", "exec", command="yes | head -c 300000; sleep 0.2; echo end")
    outputs = lines[:-1]
    assert sum(len(line["text"]) for line in outputs) == 64 * 1024
    assert all(len(json.dumps(line)) < 128 * 1024 for line in lines)
    assert lines[-1]["total_bytes"] == 300_004
    assert lines[-1]["text"].endswith("end\n")


async def test_cancel_kills_the_whole_tree(server: Running) -> None:
    call = asyncio.create_task(
        server.guest.call("a", "exec", command="setsid -f sleep 300; touch up; sleep 301 & wait")
    )
    await until((server.workspace / "up").exists)
    async with server.another_guest() as other:
        assert await other.ask("DELETE", "/v1/calls/a") == {"cancelled": True}
    result = await call
    assert (result["outcome"], result["timed_out"], result["code"]) == ("cancelled", False, None)
    assert server.descendants() == []
    assert await server.guest.ask("DELETE", "/v1/calls/a") == {"cancelled": False}
    assert (await server.guest.call("a", "exec", command="setsid -f sleep 300; touch up; sleep 301 & wait"))[
        "outcome"
    ] == "cancelled"


async def test_a_call_that_comes_after_its_cancellation_does_not_run(server: Running) -> None:
    assert await server.guest.ask("DELETE", "/v1/calls/a") == {"cancelled": True}

    assert (await server.guest.call("a", "exec", command="touch ran"))["outcome"] == "cancelled"
    assert not (server.workspace / "ran").exists()


async def test_a_seventeenth_call_is_refused_and_the_sixteen_end_well(server: Running) -> None:
    command = "while [ ! -e go ]; do sleep 0.05; done; echo $$"

    async def one(call_id: str) -> Any:
        async with server.another_guest() as guest:
            return await guest.call(call_id, "exec", command=command)

    calls = [asyncio.create_task(one(f"c{n}")) for n in range(16)]
    async with asyncio.timeout(60):
        while (await server.guest.ask("GET", "/v1/health"))["running"] < 16:
            await asyncio.sleep(0.01)
    with pytest.raises(Answer, match="429"):
        await server.guest.call("more", "exec", command="true")
    (server.workspace / "go").touch()
    results = await asyncio.gather(*calls)
    assert len({result["text"] for result in results}) == 16
    assert all(result["outcome"] == "ok" and result["killed"] == 0 for result in results)


async def test_an_unknown_tool_and_a_broken_call_are_told_apart(server: Running) -> None:
    assert (await server.run("rm"))["code"] == "UnknownTool"
    bodies: list[Any] = [
        {},
        {"tool": "exec"},
        {"tool": "exec", "arguments": []},
        {"tool": 1, "arguments": {}},
        {"tool": "exec", "arguments": {}, "timeout_seconds": 0},
        {"tool": "exec", "arguments": {}, "timeout_seconds": "9"},
        {"tool": "exec", "arguments": {}, "timeout_seconds": True},
    ]
    for body in bodies:
        with pytest.raises(Answer, match="400"):
            await server.guest.ask("PUT", "/v1/calls/x", body)
        await server.guest.hello()


async def test_the_shorter_of_both_timeouts_holds(server: Running) -> None:
    body = {"tool": "exec", "arguments": {"command": "sleep 9", "timeout_seconds": 9}, "timeout_seconds": 0.3}
    assert (await server.guest.ask("PUT", "/v1/calls/a", body))[-1]["timed_out"]
    body = {"tool": "exec", "arguments": {"command": "sleep 9", "timeout_seconds": 1}, "timeout_seconds": 9}
    assert (await server.guest.ask("PUT", "/v1/calls/b", body))[-1]["timed_out"]


async def test_files_are_seeded_once_for_a_volume(server: Running) -> None:
    files = [{"path": "a/run.sh", "content": "echo hi\n", "mode": 0o755}, {"path": "b", "content": "b"}]
    assert (await server.guest.hello())["seeded"] is False
    assert await server.guest.ask("POST", "/v1/seed", {"files": files}) == {"seeded": True}
    assert (await server.exec("a/run.sh; stat -c %a a/run.sh b"))["text"] == "hi\n755\n644\n"
    (server.workspace / "b").write_text("changed")
    assert await server.guest.ask("POST", "/v1/seed", {"files": files}) == {"seeded": True}
    assert (server.workspace / "b").read_text() == "changed"
    assert (await server.guest.hello())["seeded"] is True


async def test_a_seed_that_fails_leaves_the_volume_unseeded(server: Running) -> None:
    with pytest.raises(Answer, match="422") as caught:
        await server.guest.ask("POST", "/v1/seed", {"files": [{"path": "../x", "content": ""}]})
    assert caught.value.body["error"] == "PathEscapes"
    broken: list[Any] = [None, {}, [1], [{"path": "a"}], [{"path": "a", "content": "", "mode": 0o7777}]]
    for files in broken:
        with pytest.raises(Answer, match="400"):
            await server.guest.ask("POST", "/v1/seed", {"files": files})
    assert (await server.guest.hello())["seeded"] is False


async def test_a_second_server_on_the_volume_is_seeded_and_another_instance(server: Running) -> None:
    await server.guest.ask("POST", "/v1/seed", {"files": []})
    before = await server.guest.hello()
    assert before["fresh"]
    async with running(server.volume.rename(server.volume.parent / "again")) as second:
        after = await second.guest.hello()
    assert (after["seeded"], after["fresh"]) == (True, False)
    assert after["instance"] != before["instance"]
