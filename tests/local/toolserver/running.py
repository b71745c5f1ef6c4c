"""A tool server under test: a real process on a unix socket, and what a test may look at from outside."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.processes import die_with_the_test
from towline.sandbox.guest import Guest

KEY = "5eaf00d5" * 8
_MARK = "TOWLINE_TEST_MARK"


@dataclass
class Running:
    """The process, its volume, and a connection that has shown the key."""

    process: subprocess.Popen[bytes]
    endpoint: str
    volume: Path
    guest: Guest
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def workspace(self) -> Path:
        return self.volume / "workspace"

    def new_id(self) -> str:
        return f"call-{next(self._ids)}"

    async def run(self, tool: str, /, timeout_seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
        """One call under a new id; its result."""
        result: dict[str, Any] = await self.guest.call(self.new_id(), tool, timeout_seconds, **arguments)
        return result

    async def exec(self, command: str, **arguments: Any) -> dict[str, Any]:
        return await self.run("exec", command=command, **arguments)

    @asynccontextmanager
    async def another_guest(self) -> AsyncIterator[Guest]:
        async with Guest(self.endpoint, KEY) as guest:
            yield guest

    def status(self, name: str) -> int:
        """A number of /proc/PID/status, such as VmHWM in kB."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(next(line for line in file if line.startswith(name + ":")).split()[1])

    def descendants(self) -> list[int]:
        """Living processes below the tool server."""
        parents = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(name)] = int(parent)
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found - {self.process.pid})


@asynccontextmanager
async def running(
    volume: Path,
    *,
    environment: Mapping[str, str] = {},
    program: tuple[str, ...] = (),
    left_open: tuple[int, ...] = (),
    proved: bool = True,
    stderr: IO[bytes] | None = None,
) -> AsyncIterator[Running]:
    """Start a tool server; at the end nothing of it is left. With `proved` false its network is yet to be."""
    path = volume.parent / f"{volume.name}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        process = subprocess.Popen(
            program or (sys.executable, "-m", "towline.toolserver"),
            pass_fds=(listener.fileno(), *left_open),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env={
                "TOWLINE_LISTEN": f"fd:{listener.fileno()}",
                "TOWLINE_SANDBOX_NAME": "under-test",
                "TOWLINE_SANDBOX_KEY": KEY,
                "TOWLINE_VOLUME": str(volume),
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
                "UNLISTED": "never seen by a command",
                **environment,
            },
            preexec_fn=die_with_the_test,
        )
    endpoint = f"unix:{path}"
    guest = Guest(endpoint, KEY)
    server = Running(process, endpoint, volume, guest)
    try:
        if proved:
            await guest.hello()
        yield server
    finally:
        guest.close()
        left = server.descendants()
        process.kill()
        process.wait(10)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"the test left processes: {left}"


def arguments(pids: list[int]) -> list[str]:
    """Command lines of those processes that still exist."""
    lines = []
    for pid in pids:
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return lines


async def until(condition: Any, seconds: float = 60) -> None:
    """Wait for something that only polling can see, such as a file of another process."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
