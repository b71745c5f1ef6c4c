"""What a sandbox on this machine cannot see, cannot reach, and does not leave behind."""

import asyncio
import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from towline.errors import SandboxFailed
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle
from towline.sandbox.guest import Guest
from towline.sandbox.mounts import interpreter_prefix
from towline.sandbox.provider import SandboxRequest

NewRequest = Callable[[], SandboxRequest]


class Inside:
    """A shell in a sandbox."""

    def __init__(self, guest: Guest, request: SandboxRequest) -> None:
        self.guest, self.request = guest, request
        self._count = 0

    async def __call__(self, command: str) -> str:
        self._count += 1
        result = await self.guest.call(f"c{self._count}", "exec", command=f"exec 2>&1; {command}")
        return str(result["text"])


@asynccontextmanager
async def sandbox(provider: LocalSandbox, request: SandboxRequest) -> AsyncIterator[Inside]:
    handle = await provider.create(request)
    async with Guest(handle.endpoint, request.key) as guest:
        yield Inside(guest, request)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what only polling can see: other processes."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


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
        assert time.monotonic() - started < 3


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
        command = "b() { b | b & }; b; sleep 60"
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


async def test_destroy_leaves_no_process_and_no_socket(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    request = new_request()
    async with sandbox(provider, request) as inside:
        running = asyncio.create_task(inside("setsid sleep 600 & sleep 601"))
        first = provider.first_process(request.name)
        outer = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        await until(lambda: len(children(first)) > 0)
        pids = [outer, first, *children(first)]
        await provider.destroy(request.name)
        await asyncio.gather(running, return_exceptions=True)
    assert not any(alive(pid) for pid in pids)
    assert list((tmp_path / "r").glob("*.sock")) == []


MAKER = """
import asyncio, pathlib, sys
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle
from towline.sandbox.provider import SandboxRequest
async def main():
    provider = LocalSandbox(Bundle(pathlib.Path(sys.argv[1]), sys.argv[2]), pathlib.Path(sys.argv[3]))
    await provider.preflight()
    print("creating", flush=True)
    await provider.create(SandboxRequest(name=sys.argv[4], key="ab" * 32))
    print(provider.first_process(sys.argv[4]), flush=True)
    await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@pytest.fixture
def orphans() -> Iterator[Callable[[], list[int]]]:
    """What is left of processes that this test has started; orphans come to us meanwhile."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_child_subreaper, 1, 0, 0, 0)
    before = set(children(os.getpid()))

    def left() -> list[int]:
        found = [pid for pid in children(os.getpid()) if pid not in before]
        for pid in found:
            if not alive(pid):
                os.waitpid(pid, os.WNOHANG)
        return [pid for pid in found if alive(pid)]

    yield left
    prctl(set_child_subreaper, 0, 0, 0, 0)


async def test_a_sandbox_dies_with_the_process_that_made_it(bundle: Bundle, tmp_path: Path) -> None:
    arguments = (bundle.folder, bundle.loader, tmp_path / "r", "s")
    maker = await asyncio.create_subprocess_exec(sys.executable, "-c", MAKER, *arguments, stdout=subprocess.PIPE)
    assert maker.stdout is not None
    async with asyncio.timeout(60):
        await maker.stdout.readline()
        first = int(await maker.stdout.readline())
    assert alive(first)
    maker.kill()
    await maker.wait()
    await until(lambda: not alive(first))


async def test_nothing_is_left_by_a_process_that_dies_while_it_makes_a_sandbox(
    bundle: Bundle, tmp_path: Path, orphans: Callable[[], list[int]]
) -> None:
    for milliseconds in range(0, 24, 2):
        arguments = (bundle.folder, bundle.loader, tmp_path / "r", f"s{milliseconds}")
        maker = await asyncio.create_subprocess_exec(sys.executable, "-c", MAKER, *arguments, stdout=subprocess.PIPE)
        assert maker.stdout is not None
        async with asyncio.timeout(60):
            await maker.stdout.readline()
        await asyncio.sleep(milliseconds / 1000)  # the moment is the point, not a wait for something
        maker.kill()
        await maker.wait()
    await until(lambda: orphans() == [])


async def test_nothing_is_left_by_a_creation_that_is_cancelled_at_any_moment(
    provider: LocalSandbox, new_request: NewRequest, orphans: Callable[[], list[int]]
) -> None:
    await provider.preflight()
    for milliseconds in range(0, 24, 2):
        creating = asyncio.create_task(provider.create(new_request()))
        await asyncio.sleep(milliseconds / 1000)  # the moment is the point, not a wait for something
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    await provider.aclose()
    await until(lambda: orphans() == [])


async def test_without_bubblewrap_nothing_is_run(bundle: Bundle, tmp_path: Path, new_request: NewRequest) -> None:
    provider = LocalSandbox(bundle, tmp_path / "r", bwrap=str(tmp_path / "absent"))
    with pytest.raises(SandboxFailed) as caught:
        await provider.create(new_request())
    assert caught.value.reason == "BubblewrapMissing"
    assert list((tmp_path / "r").glob("*.sock")) == []


async def test_without_user_namespaces_nothing_is_run_and_the_message_says_what_to_do(
    bundle: Bundle, tmp_path: Path, new_request: NewRequest
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    provider = LocalSandbox(bundle, tmp_path / "r", bwrap=str(refusing))
    for _ in range(2):
        with pytest.raises(SandboxFailed) as caught:
            await provider.create(new_request())
        assert caught.value.reason == "UserNamespacesUnavailable"
        for part in (
            "max_user_namespaces",
            "unprivileged_userns_clone",
            "apparmor",
            "--security-opt",
            "No permissions",
        ):
            assert part in caught.value.message


async def test_a_kernel_that_cannot_forbid_nested_namespaces_still_gets_a_sandbox(
    bundle: Bundle, tmp_path: Path, new_request: NewRequest
) -> None:
    from towline.sandbox.bwrap import bwrap_path

    picky = tmp_path / "bwrap"
    # Arguments come through a descriptor; opened anew by its path, it is read without being used up.
    picky.write_text(
        "#!/bin/sh\n"
        "tr '\\0' '\\n' < /proc/self/fd/$2 | grep -qx -e --disable-userns && exit 1\n"
        f'exec {bwrap_path()} "$@"\n'
    )
    picky.chmod(0o755)
    provider = LocalSandbox(bundle, tmp_path / "r", bwrap=str(picky))
    try:
        async with sandbox(provider, new_request()) as inside:
            assert await inside("echo hi") == "hi\n"
    finally:
        await provider.aclose()


async def test_a_tool_server_that_cannot_start_is_told_with_its_last_words(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    base = new_request()
    request = replace(base, key="not hexadecimal")
    with pytest.raises(SandboxFailed, match="TOWLINE_SANDBOX_KEY") as caught:
        await provider.create(request)
    assert caught.value.reason == "StartFailed"
    assert "not hexadecimal" not in caught.value.message
    assert list((tmp_path / "r").glob("*.sock")) == []
    assert (await provider.create(base)).name == base.name


async def test_an_image_folder_that_is_absent_or_a_volume_that_is_a_file_is_told(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    base = new_request()
    with pytest.raises(SandboxFailed, match="absent"):
        await provider.create(SandboxRequest(name="a", key=base.key, image=str(tmp_path / "absent")))
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxFailed, match="file"):
        await provider.create(SandboxRequest(name="b", key=base.key, volume=tmp_path / "file"))


@pytest.mark.parametrize("name", ["a/b", "n" * 120])
async def test_a_name_that_makes_no_socket_is_refused(
    provider: LocalSandbox, new_request: NewRequest, name: str
) -> None:
    with pytest.raises(SandboxFailed) as caught:
        await provider.create(SandboxRequest(name=name, key=new_request().key))
    assert caught.value.reason == "BadName"


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


def test_bubblewrap_is_found() -> None:
    from towline.sandbox.bwrap import bwrap_path

    assert shutil.which(bwrap_path())
    assert signal.SIGKILL
