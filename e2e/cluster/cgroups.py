"""The cluster's part of the machine's cgroup tree: `/tl0/daemons` for its daemons, `/tl0/NODE` for a node's pods.

Whatever descends from a daemon or a pod is in there, so this is also the complete list of what `down` must end: shims
and containers outlive containerd, and nobody has their numbers. Tried on cgroup v1 (hybrid) only.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from e2e.cluster.layout import Cluster
from e2e.cluster.shell import wait_until

ROOT = Path("/sys/fs/cgroup")
V2 = (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The one tree of v2, or the tree of each v1 controller; `unified` of hybrid machines has no controllers."""
    if V2:
        return [ROOT]
    return [
        tree for tree in sorted(ROOT.iterdir()) if tree.name != "unified" and not tree.is_symlink() and tree.is_mount()
    ]


def create(cluster: Cluster) -> None:
    for tree in hierarchies():
        for path in (cluster.tag, f"{cluster.tag}/daemons", *(node.cgroup for node in cluster.nodes)):
            group = tree / path
            group.mkdir(exist_ok=True)
            if tree.name == "cpuset" and not V2:  # a new cpuset of v1 is empty, and nothing can run in it
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (group / setting).write_text((group.parent / setting).read_text())


def procs(cluster: Cluster) -> list[Path]:
    """What a daemon joins. On v1 one hierarchy is enough to find it by; `pids` accounts and limits nothing else."""
    return [(ROOT if V2 else ROOT / "pids") / cluster.tag / "daemons" / "cgroup.procs"]


def members(cluster: Cluster) -> set[int]:
    found: set[int] = set()
    for group in groups(cluster):
        with suppress(OSError):  # a group may go away while we look
            found.update(map(int, (group / "cgroup.procs").read_text().split()))
    return found


def kill_and_remove(cluster: Cluster) -> None:
    """End everything in the cluster's groups, then remove the groups. Nothing to do is fine."""

    def nobody_left() -> bool:
        left = members(cluster)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def gone() -> bool:
        for group in groups(cluster):
            with suppress(OSError):  # still busy for a moment after its last process
                group.rmdir()
        return not any(groups(cluster))

    wait_until("processes of the cluster's cgroups ended", nobody_left, seconds=60)
    wait_until("cgroups removed", gone, seconds=120)


def groups(cluster: Cluster) -> Iterator[Path]:
    """Every group of the cluster, children before parents."""
    for tree in hierarchies():
        for folder, _, _ in os.walk(tree / cluster.tag, topdown=False):
            yield Path(folder)
