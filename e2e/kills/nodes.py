"""The pods of our cluster as this machine sees them: nodes are namespaces here, so their processes and files are ours.

Everything is found by a pod's uid, in the node's cgroups and in the folders of its kubelet.
"""

import asyncio
import os
import signal
from datetime import datetime
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.layout import Node
from towline.clock import utc_now

LOOK_SECONDS = 0.05
STAT_STATE, STAT_PARENT, STAT_EXIT_CODE = 0, 1, -1
"""Fields of /proc/PID/stat behind the name."""


class Process:
    """The first process of a container, held by a pidfd: it is never another one of that number."""

    def __init__(self, pid: int) -> None:
        """Inside a running loop. Raises ProcessLookupError."""
        self.pid = pid
        self.died_at: datetime | None = None
        self.dead = asyncio.Event()
        self._fd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._ended)

    def send(self, number: signal.Signals) -> None:
        """Nothing happens to a dead one."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            pass

    async def kill(self) -> datetime:
        """When it was dead."""
        self.send(signal.SIGKILL)
        await self.dead.wait()
        assert self.died_at is not None
        return self.died_at

    async def stop(self) -> datetime:
        """When it stood still."""
        self.send(signal.SIGSTOP)
        while stat(self.pid)[STAT_STATE] != "T":
            await asyncio.sleep(LOOK_SECONDS / 10)
        return utc_now()

    def parent(self) -> "Process":
        """Of a container's process: its shim, through which the node's runtime does everything with it."""
        return Process(int(stat(self.pid)[STAT_PARENT]))

    def exit_code(self) -> int:
        """Of a dead process whose parent has not asked; negative for a signal."""
        return os.waitstatus_to_exitcode(int(stat(self.pid)[STAT_EXIT_CODE]))

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ended(self) -> None:
        self.died_at = utc_now()
        self._loop.remove_reader(self._fd)
        self.dead.set()


class Held:
    """A file that may be deleted, and is read to its end nevertheless."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def read(self) -> bytes:
        return os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size, 0)

    def close(self) -> None:
        self._file.close()


def process_of(node: Node, pod_uid: str) -> int | None:
    """Number of the process of ours that the pod's container runs; None while, or when, there is none."""
    tree = (cgroups.ROOT if cgroups.V2 else cgroups.ROOT / "pids") / node.cgroup
    for procs in tree.glob(f"kubepods/*/pod{pod_uid}/*/cgroup.procs"):
        try:
            for pid in map(int, procs.read_text().split()):
                if b"\0towline." in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        except OSError:
            continue  # it went while we looked
    return None


async def until_process(node: Node, pod_uid: str) -> Process:
    while True:
        if (pid := process_of(node, pod_uid)) is not None:
            try:
                return Process(pid)
            except ProcessLookupError:
                pass
        await asyncio.sleep(LOOK_SECONDS)


def pod_folders(node: Node, namespace: str, pod_name: str) -> list[tuple[str, Path]]:
    """Uid and folder of the container logs of each pod of that name that the node has had."""
    begin = f"{namespace}_{pod_name}_"
    logs = node.var / "log" / "pods"
    found = [each for each in os.listdir(logs) if each.startswith(begin)] if logs.is_dir() else []
    return [(name.removeprefix(begin), logs / name) for name in found]


def empty_dir(node: Node, pod_uid: str, volume: str) -> Path:
    """Where an emptyDir volume of a pod is."""
    return node.var / "lib" / "kubelet" / "pods" / pod_uid / "volumes" / "kubernetes.io~empty-dir" / volume


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
