"""What a command in a sandbox on this machine cannot see, cannot reach and cannot do."""

import asyncio
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

from tests.local.sandbox.inside import NewRequest, sandbox
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.guest import Guest
from towline.sandbox.mounts import interpreter_prefix


async def test_there_is_no_network_and_a_connection_fails_at_once(
    provider: LocalSandbox, new_request: NewRequest
) -> None:
    async with sandbox(provider, new_request()) as inside:
        interfaces = [line.split(":")[0].strip() for line in (await inside("cat /proc/net/dev")).splitlines()[2:]]
        assert interfaces == ["lo"]
        assert "1" not in (await inside("tail -n +2 /proc/net/route | wc -l")).split()
        connect = "import socket, sys; socket.create_connection((sys.argv[1], 80), 5)"
        started = time.monotonic()
        assert "Network is unreachable" in await inside(f'python3 -c "{connect}" 192.0.2.1')
        assert "Network is unreachable" in await inside(f'python3 -c "{connect}" 169.254.169.254')
        assert "Errno" in await inside(f'python3 -c "{connect}" example.com')
        assert time.monotonic() - started < 9  # a name server that is silent costs ten seconds


async def test_the_hosts_files_and_sockets_are_not_there(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    async with sandbox(provider, new_request()) as inside:
        for path in (
            "/home",
            "/etc/shadow",
            "/var/lib",
            "/srv",
            "/mnt",
            "/boot",
            "/sys",
            "/run/docker.sock",
            str(tmp_path),
        ):
            assert "No such file" in await inside(f"ls -d {path}"), path
        top = set((await inside("ls /")).split())
        assert top <= {
            "bin",
            "dev",
            "etc",
            "lib",
            "lib32",
            "lib64",
            "libx32",
            "opt",
            "proc",
            "run",
            "sandbox",
            "sbin",
            "tmp",
            "usr",
            "var",
        } | (
            {interpreter_prefix().parts[1]} if interpreter_prefix() else set()  # type: ignore[union-attr]
        )
        assert (await inside("find / -xdev -type s 2>/dev/null; find /tmp /run /var /sandbox -type s")) == ""
        assert set((await inside("ls /etc")).split()) <= {
            "alternatives",
            "group",
            "hosts",
            "ld.so.cache",
            "nsswitch.conf",
            "passwd",
        }
        if (prefix := interpreter_prefix()) is not None:
            first = Path(*prefix.parts[:2])
            assert (await inside(f"ls -A {first}")).split() == [prefix.parts[2]], (
                "only the way to the interpreter is visible"
            )


async def test_a_command_is_an_ordinary_user_without_any_privilege(
    provider: LocalSandbox, new_request: NewRequest
) -> None:
    async with sandbox(provider, new_request()) as inside:
        assert await inside("id -u; id -g; id -un; hostname") == "1000\n1000\nsandbox\nsandbox\n"
        status = await inside("grep -E '^(Cap|NoNew)' /proc/self/status")
        assert {line.split()[1] for line in status.splitlines()} == {"0000000000000000", "1"}
        assert "ok" not in await inside("unshare -U true && echo ok")
        assert "ok" not in await inside("mount -t tmpfs none /tmp && echo ok")
        assert "ok" not in await inside("chroot / true && echo ok")


async def test_everything_but_the_volume_and_tmp_is_read_only(provider: LocalSandbox, new_request: NewRequest) -> None:
    async with sandbox(provider, new_request()) as inside:
        for path in (
            "/",
            "/usr",
            "/etc",
            "/etc/passwd",
            "/opt/towline",
            "/opt/towline/rt/python3",
            "/run",
            "/var",
            "/dev",
        ):
            assert "Read-only file system" in await inside(f"touch {path} || : >> {path}"), path
        for path in ("/tmp", "/var/tmp", "/dev/shm", "/sandbox", "$HOME", "$TMPDIR", "."):
            assert await inside(f"touch {path}/x && echo ok") == "ok\n", path


async def test_files_made_inside_belong_to_the_user_outside(provider: LocalSandbox, new_request: NewRequest) -> None:
    request = new_request()
    async with sandbox(provider, request) as inside:
        await inside("echo text > made")
    assert request.volume is not None
    made = request.volume / "workspace" / "made"
    assert made.read_text() == "text\n"
    assert made.stat().st_uid == os.getuid()
    assert stat.S_IMODE(request.volume.stat().st_mode) == 0o700


async def test_the_key_cannot_be_read_from_the_tool_server(provider: LocalSandbox, new_request: NewRequest) -> None:
    request = new_request()
    async with sandbox(provider, request) as inside:
        for name in ("environ", "mem", "maps", "auxv"):
            assert "Permission denied" in await inside(f"head -c 1 /proc/1/{name}"), name
        assert "ermission denied" in await inside("ls -l /proc/1/fd /proc/1/cwd")
        assert request.key not in await inside("cat /proc/*/cmdline /proc/*/environ; env")
        # 101 is PTRACE_ATTACH's syscall on x86-64 and 117 on arm64; the C library knows.
        attach = (
            "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.ptrace(16, 1, 0, 0), ctypes.get_errno())"
        )
        assert (await inside(f'python3 -c "{attach}"')).split() == ["-1", "1"]


async def test_a_running_search_cannot_be_read_either(provider: LocalSandbox, new_request: NewRequest) -> None:
    request = new_request()
    async with sandbox(provider, request) as inside:
        await inside("printf '%040db' 0 | tr 0 a > f")
        async with Guest(await provider.endpoint(request.name), request.key) as other:
            searching = asyncio.create_task(other.call("s", "search", pattern="(a|a)*$"))
            async with asyncio.timeout(60):
                while (await inside.guest.ask("GET", "/v1/health"))["running"] == 0:
                    await asyncio.sleep(0.01)
            look = "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || head -c 1 $p/environ; done"
            assert (await inside(look)).count("Permission denied") == 2
            await inside.guest.ask("DELETE", "/v1/calls/s")
            assert (await searching)["outcome"] == "cancelled"


async def test_signals_from_inside_do_not_end_the_tool_server(provider: LocalSandbox, new_request: NewRequest) -> None:
    async with sandbox(provider, new_request()) as inside:
        before = (await inside.guest.hello())["instance"]
        await inside(
            "for s in KILL TERM INT HUP QUIT STOP CHLD USR1 PIPE ALRM ABRT SEGV; do kill -$s 1; done; kill -9 -1"
        )
        assert await inside("echo still here") == "still here\n"
        assert (await inside.guest.hello())["instance"] == before


async def test_a_fork_bomb_is_ended_while_health_answers(provider: LocalSandbox, new_request: NewRequest) -> None:
    """An ordinary user's bomb meets RLIMIT_NPROC and its timeout; root's, which the kernel lets grow, our own count."""
    request = replace(new_request(), max_processes=64)
    async with sandbox(provider, request) as inside, Guest(await provider.endpoint(request.name), request.key) as other:
        # Eight times what is allowed, and no more: on a busy machine an endless one is faster than our count, and has
        # taken every process there was.
        command = "b() { [ $1 -gt 0 ] && { b $(($1-1)) & b $(($1-1)) & sleep 100; }; }; b 8 & sleep 60"
        bomb = asyncio.create_task(inside.guest.call("bomb", "exec", command=command, timeout_seconds=1))
        async with asyncio.timeout(60):
            assert (await other.ask("GET", "/v1/health"))["status"] == "ok"
            assert (await bomb)["code"] == ("TooManyProcesses" if os.getuid() == 0 else "TimedOut")
            # By the connection that has shown the key: one that did not is closed after five idle seconds.
            left = await inside.guest.call("after", "exec", command="ls -d /proc/[0-9]* | wc -l")
            assert int(left["text"]) < 10


async def test_calls_beside_a_bomb_survive_it(provider: LocalSandbox, new_request: NewRequest) -> None:
    request = replace(new_request(), max_processes=64)
    async with sandbox(provider, request) as inside, Guest(await provider.endpoint(request.name), request.key) as other:
        command = "n=0; while [ ! -e stop ]; do n=$((n+1)); done; echo counted"
        quiet = asyncio.create_task(other.call("quiet", "exec", command=command))
        command = "i=0; while [ $i -lt 80 ]; do sleep 60 & i=$((i+1)); done; sleep 60"
        assert (await inside.guest.call("bomb", "exec", command=command, timeout_seconds=1))["exit_code"] != 0
        await inside.guest.call("stop", "write_file", path="stop", content="")
        result = await quiet
        assert (result["outcome"], result["text"]) == ("ok", "counted\n")


async def test_variables_of_the_request_reach_commands_and_nothing_else_does(
    provider: LocalSandbox, new_request: NewRequest
) -> None:
    request = replace(new_request(), env={"TEAM": "a b"})
    os.environ["HOST_SECRET"] = "x"
    try:
        async with sandbox(provider, request) as inside:
            names = {line.partition("=")[0] for line in (await inside("env")).splitlines()}
            assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "TEAM", "PWD", "OLDPWD", "SHLVL", "_"}
            assert await inside("echo $TEAM; command -v python3 >/dev/null && echo found") == "a b\nfound\n"
    finally:
        del os.environ["HOST_SECRET"]


async def test_the_key_is_not_in_the_hosts_process_list(provider: LocalSandbox, new_request: NewRequest) -> None:
    request = new_request()
    async with sandbox(provider, request):
        pid = provider.first_process(request.name)
        outer = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for each in (pid, outer):
            assert request.key.encode() not in Path(f"/proc/{each}/cmdline").read_bytes()
        assert request.key.encode() not in Path(f"/proc/{outer}/environ").read_bytes()


async def test_the_sockets_are_for_this_user_alone(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    async with sandbox(provider, new_request()):
        assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "r" / "s1.sock").stat().st_mode) == 0o600


async def test_files_of_root_that_only_root_may_read_stay_unread(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    """As host root, a sandbox owns root's files: so nothing of root's may be visible but programs."""
    async with sandbox(provider, new_request()) as inside:
        listed = await inside(
            "find / -xdev ! -perm -o+r ! -type l -not -path '/sandbox*' -not -path '/proc*' 2>/dev/null | head"
        )
        for path in listed.splitlines():
            assert path.startswith(("/usr/", "/root", "/opt")), path
