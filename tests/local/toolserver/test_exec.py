"""exec: whatever a command does, it ends in time, its output is bounded and counted, and nothing of it is left."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.local.toolserver.running import Running, arguments, running, until


async def test_a_command_runs_in_the_workspace_and_its_output_is_one_stream(server: Running) -> None:
    result = await server.exec("pwd; echo out; echo err >&2; exit 3")
    assert result["text"] == f"{server.workspace}\nout\nerr\n"
    assert (result["outcome"], result["exit_code"], result["signal"], result["code"]) == ("ok", 3, None, None)
    assert (result["total_bytes"], result["truncated"], result["killed"]) == (len(result["text"]), False, 0)


async def test_cwd_is_a_folder_of_the_workspace(server: Running) -> None:
    (server.workspace / "a").mkdir()
    (server.workspace / "link").symlink_to("/etc")
    assert (await server.exec("basename $PWD", cwd="a"))["text"] == "a\n"
    assert (await server.exec("basename $PWD"))["text"] == "workspace\n"
    assert (await server.exec("true", cwd="link"))["code"] == "PathEscapes"
    assert (await server.exec("true", cwd="absent"))["code"] == "NotFound"


async def test_the_environment_of_a_command_is_the_golden_list(server: Running) -> None:
    lines = (await server.exec("env"))["text"].splitlines()
    assert sorted(line for line in lines if not line.startswith(("PWD=", "_="))) == [
        f"HOME={server.volume}/home",
        "LANG=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "TERM=dumb",
        f"TMPDIR={server.volume}/tmp",
    ]


async def test_a_command_inherits_no_descriptor_no_terminal_and_default_signals(server: Running) -> None:
    text = (await server.exec("ls /proc/$$/fd; tty; (: </dev/tty) 2>&1; grep -E '^Sig(Ign|Blk)' /proc/self/status"))[
        "text"
    ]
    descriptors = text.splitlines()[:3]
    assert descriptors == ["0", "1", "2"]
    assert "not a tty" in text
    assert "/dev/tty" in text
    blocked, ignored = (int(line.split()[1], 16) for line in text.splitlines()[-2:])
    # 32 and 33 are the C library's own; its posix_spawn ignores them in every child.
    assert (blocked, ignored & 0x7FFF_FFFF) == (0, 0)


async def test_a_command_that_waits_for_input_gets_the_end_at_once(server: Running) -> None:
    result = await server.exec("cat; echo after", timeout_seconds=5)
    assert (result["text"], result["timed_out"]) == ("after\n", False)


async def test_a_command_leads_its_own_session(server: Running) -> None:
    assert (await server.exec("cut -d' ' -f1,6 /proc/$$/stat | awk '{print $1 == $2}'"))["text"] == "1\n"


async def test_bytes_that_are_no_text_and_nul_arrive_as_text(server: Running) -> None:
    result = await server.exec(r"printf 'a\377\376b\000c\355\240\200d'")
    assert result["text"] == "a\ufffd\ufffdb\ufffdc\ufffd\ufffd\ufffdd"
    assert result["total_bytes"] == 10
    json.dumps(result).encode()


async def test_a_gigabyte_is_counted_exactly_in_flat_memory(server: Running) -> None:
    await server.exec("true")
    before = server.status("VmHWM")
    result = await server.exec("head -c 1000000000 /dev/zero | tr '\\0' x; echo end", timeout_seconds=60)
    assert result["total_bytes"] == 1_000_000_004
    assert result["truncated"]
    assert len(result["text"]) <= 40_000
    assert "[… 999960204 bytes omitted …]" in result["text"]
    assert result["text"].endswith("xend\n")
    assert server.status("VmHWM") - before < 2048, "kB that the flood has cost"


async def test_endless_output_ends_with_the_timeout(server: Running) -> None:
    result = await server.exec("yes", timeout_seconds=1)
    assert (result["outcome"], result["timed_out"], result["code"]) == ("error", True, "TimedOut")
    assert result["truncated"]
    assert server.descendants() == []


async def test_a_command_that_ignores_sigterm_is_killed(server: Running) -> None:
    result = await server.exec("trap '' TERM INT HUP; echo armed; while :; do sleep 100; done", timeout_seconds=0.5)
    assert (result["outcome"], result["timed_out"], result["signal"]) == ("error", True, 9)
    assert result["text"] == "armed\n"
    assert server.descendants() == []


async def test_a_command_may_clean_up_on_sigterm(server: Running) -> None:
    result = await server.exec(
        "trap 'echo cleaned; exit 7' TERM; echo armed; while :; do sleep 0.05; done", timeout_seconds=0.5
    )
    assert (result["timed_out"], result["exit_code"]) == (True, 7)
    assert result["text"].endswith("cleaned\n")


async def test_children_of_a_command_get_the_time_to_end_on_sigterm(server: Running) -> None:
    script = (
        "sh -c 'trap \"sleep 0.6; echo child cleaned; exit\" TERM; echo armed; while :; do sleep 0.05; done' & wait"
    )
    result = await server.exec(script, timeout_seconds=0.5)
    assert result["text"].startswith("armed\n")
    assert result["text"].endswith("child cleaned\n")
    assert server.descendants() == []


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300 & echo done",
        "setsid sleep 300 & echo done",
        "nohup sleep 300 & echo done",
        "(nohup setsid sh -c 'sleep 300 & sleep 301' >/dev/null 2>&1 &); echo done",
        "env -i setsid -f sleep 300; echo done",
        "sh -c 'sleep 300 & exec setsid -f sleep 301' & echo done",
        "for n in 1 2 3 4 5; do setsid -f sh -c 'setsid -f sleep 300; sleep 300'; done; echo done",
        "setsid -f sh -c 'while :; do setsid -f sh -c \"setsid -f sleep 300\"; sleep 0.01; done'; echo done",
    ],
)
async def test_daemons_that_stay_are_found_and_killed(server: Running, command: str) -> None:
    result = await server.exec(command)
    assert (result["outcome"], result["exit_code"]) == ("ok", 0)
    assert "done" in result["text"]
    assert result["killed"] >= 1
    assert server.descendants() == []


async def test_output_that_follows_within_the_grace_is_kept(server: Running) -> None:
    assert (await server.exec("(sleep 0.05; echo late) & echo early"))["text"] == "early\nlate\n"


async def test_a_timeout_reaches_children_that_left_the_session(server: Running) -> None:
    result = await server.exec("setsid sleep 300; echo never", timeout_seconds=0.3)
    assert (result["timed_out"], result["text"]) == (True, "")
    assert server.descendants() == []


async def test_calls_that_run_at_once_leave_each_others_processes_alone(server: Running) -> None:
    async with server.another_guest() as other:
        survivor = asyncio.create_task(
            other.call(
                "long",
                "exec",
                # All of the survivor's processes look like daemons, and one has a cleaned environment.
                command="setsid -f sleep 300; env -i setsid -f sleep 301; touch up; "
                "while [ ! -e stop ]; do sleep 0.02; done",
            )
        )
        await until((server.workspace / "up").exists)
        for command in ("setsid -f sleep 400; env -i setsid -f sleep 401", "true"):
            result = await server.exec(command)
            assert result["outcome"] == "ok"
        result = await server.exec("setsid -f sleep 402; sleep 100", timeout_seconds=0.3)
        assert result["timed_out"]
        alive = arguments(server.descendants())
        assert {"sleep 300", "sleep 301"} <= set(alive)
        assert not {"sleep 400", "sleep 401", "sleep 402"} & set(alive)
        (server.workspace / "stop").touch()
        last = await survivor
    assert last["outcome"] == "ok"
    assert last["killed"] == 2
    assert server.descendants() == []


async def test_a_process_that_sheds_its_mark_is_killed_once_no_other_call_runs(server: Running) -> None:
    # 10 is RLIMIT_LOCKS, which bash calls -x and dash does not know.
    shed = "prlimit --locks=1000:1000 setsid -f sleep 300"
    async with server.another_guest() as other:
        waiting = asyncio.create_task(
            other.call("b", "exec", command="touch up; while [ ! -e stop ]; do sleep 0.02; done")
        )
        await until((server.workspace / "up").exists)
        await server.exec(shed)
        (server.workspace / "stop").touch()
        assert (await waiting)["outcome"] == "ok"
    assert server.descendants() == []


async def test_a_fork_bomb_ends_with_its_timeout_and_health_answers_meanwhile(server: Running) -> None:
    # Bounded here, as nothing bounds it under this test's user: each generation lives until its two children ended.
    bomb = "b() { [ $1 -gt 0 ] && { b $(($1-1)) & b $(($1-1)) & sleep 100; }; }; b 6; sleep 100"
    call = asyncio.create_task(server.exec(bomb, timeout_seconds=1))
    async with server.another_guest() as other:
        running = [(await other.ask("GET", "/v1/health"))["running"]]
        while not call.done():
            await asyncio.sleep(0.02)
            running.append((await other.ask("GET", "/v1/health"))["running"])
        assert 1 in running
    assert (await call)["timed_out"]
    assert server.descendants() == []


async def test_the_limit_of_processes_is_handed_to_commands(tmp_path: Path) -> None:
    async with running(tmp_path / "v", environment={"TOWLINE_MAX_PROCESSES": "77"}) as server:
        assert (await server.exec("prlimit -n -u -c --noheadings -o HARD | sort -n"))["text"].split()[:2] == ["0", "77"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "command"),
        ({"command": 5}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"command": "\ud800"}, "command"),
        ({"command": "x" * 131_072}, "command"),
        ({"command": "true", "timeout_seconds": 0}, "timeout_seconds"),
        ({"command": "true", "timeout_seconds": 3601}, "timeout_seconds"),
        ({"command": "true", "timeout_seconds": True}, "timeout_seconds"),
        ({"command": "true", "surprise": 1}, "surprise"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(server: Running, arguments: dict[str, object], named: str) -> None:
    body = {"tool": "exec", "arguments": arguments}
    result = (await server.guest.ask("PUT", f"/v1/calls/{server.new_id()}", body))[-1]
    assert (result["outcome"], result["code"]) == ("error", "InvalidArguments")
    assert f"argument {named} is" in result["text"] or f"argument {named}: " in result["text"]


async def test_the_longest_command_runs(server: Running) -> None:
    command = "echo ran; : " + "x" * 131_059
    assert len(command) == 131_071
    assert (await server.exec(command))["text"] == "ran\n"


async def test_a_workspace_that_a_command_replaces_is_the_workspace_of_the_next(server: Running) -> None:
    await server.exec(f"rm -rf {server.workspace} && mkdir {server.workspace} && echo text > {server.workspace}/file")
    assert (await server.exec("cat file"))["text"] == "text\n"
    assert (await server.run("read_file", path="file"))["text"] == "text\n"
    await server.exec(f"rm -rf {server.workspace}")
    assert (await server.exec("pwd -P; ls -A"))["text"] == f"{server.workspace}\n"


async def test_a_workspace_closed_to_its_owner_is_told_and_can_be_opened_again(server: Running) -> None:
    if os.getuid() == 0:
        pytest.skip("nothing is closed to root")
    await server.exec("chmod 000 .")
    assert (await server.exec("true"))["code"] == "PermissionDenied"
    server.workspace.chmod(0o700)
    assert (await server.exec("echo hi"))["text"] == "hi\n"
