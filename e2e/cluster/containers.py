"""The processes of a pod's one container, as the machine has them: their cgroup, and the container's first process.

Nodes are namespaces of this machine, so a container's processes have numbers here, too, and take signals.
"""

import os
import signal
from pathlib import Path
from typing import Any

from e2e.cluster import cgroups
from e2e.cluster.layout import Cluster
from e2e.cluster.shell import Failed


def procs(cluster: Cluster, pod: dict[str, Any]) -> Path:
    """The `cgroup.procs` of the container, in the hierarchy that bounds its memory."""
    (container,) = pod["status"]["containerStatuses"]
    name = container["containerID"].removeprefix("containerd://")
    tree = (cgroups.ROOT if cgroups.V2 else cgroups.ROOT / "memory") / cluster.tag
    (found,) = tree.glob(f"*/kubepods/*/pod{pod['metadata']['uid']}/{name}/cgroup.procs")
    return found


def signal_first(cluster: Cluster, pod: dict[str, Any], number: signal.Signals) -> None:
    """From outside its namespace the first process takes SIGKILL and SIGSTOP like any other."""
    for pid in map(int, procs(cluster, pod).read_text().split()):
        inside = next(
            line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")
        )
        if inside.split()[-1] == "1":
            os.kill(pid, number)
            return
    raise Failed(f"pod {pod['metadata']['name']}: its container has no first process")
