"""Takes the memory of a running container away, so that the kernel ends its program, as on a crowded node.

A process of ours joins the container's cgroup and allocates until it is alone there. Pods give their programs a worse
`oom_score_adj` than we have, so the kernel takes the container's first.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.cluster import containers
from e2e.cluster.layout import Cluster

ALLOCATE = """
import os, sys
procs = sys.argv[1]
with open(procs, "w") as file:
    file.write(str(os.getpid()))
held = []
while len(open(procs).read().split()) > 1:
    held.append(b"x" * (4 << 20))
"""
AT_MOST_SECONDS = 30


def out_of_memory(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Returns when the kernel has ended the pod's one container; it must have a memory limit."""
    allocate(containers.procs(cluster, pod))


def allocate(procs: Path) -> None:
    line = [sys.executable, "-I", "-c", ALLOCATE, str(procs)]
    ended = subprocess.run(line, timeout=AT_MOST_SECONDS, check=False)  # noqa: S603
    if ended.returncode not in (0, -signal.SIGKILL):  # the kernel may end ours as well, after the container's
        raise subprocess.CalledProcessError(ended.returncode, line)
