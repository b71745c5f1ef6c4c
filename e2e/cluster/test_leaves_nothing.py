"""`down` removes everything, whatever state the cluster is in: `python -m pytest e2e/cluster`, as root, about a minute.

Needs the built programs. Other clusters may stand meanwhile, but none may come or go.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import build, cgroups, lifecycle, places, policy_engine, processes, registry, sysctls
from e2e.cluster.shell import Failed, run, wait_until

NAME, OTHER = "test", "test-other"


def built() -> bool:
    try:
        build.built()
    except Failed:
        return False
    return True


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not built(), reason="needs root, and `python -m e2e.cluster build`"
)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    lifecycle.down(NAME)
    lifecycle.down(OTHER)
    before = machine()
    yield
    lifecycle.down(NAME)
    lifecycle.down(OTHER)
    wait_until("the machine is as before", lambda: machine() == before, seconds=5)


def machine() -> dict[str, object]:
    """What a cluster might leave on a machine."""
    groups = {str(group) for tree in cgroups.hierarchies() for group in tree.glob("tl*")}
    return {
        "links": set(re.findall(r"^\d+: ([^:@]+)", run("ip", "-oneline", "link"), re.MULTILINE)),
        "routes": run("ip", "route"),
        "rules": run("iptables", "--list-rules"),
        "mounts": Path("/proc/self/mounts").read_text(),
        "namespaces": len(run("lsns", "--noheadings", "--type=net").splitlines()),
        "cgroups": groups,
        "sysctls": {name: sysctls.value(name) for name in sysctls.CHANGED},
        "clusters": {cluster.name for cluster in registry.every()},
        "processes": ours(),
    }


def ours() -> set[str]:
    """Processes that run one of our programs, by the file they execute."""
    programs = str(places.cache())
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program = os.readlink(process / "exe")
        except OSError:
            continue
        if program.startswith(programs):
            found.add(f"{process.name} {program}")
    return found


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.5, 5.0])
def test_an_up_that_was_killed_leaves_nothing(seconds: float) -> None:
    up = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "e2e.cluster", "up", "--name", NAME], cwd=places.REPOSITORY, stdout=subprocess.DEVNULL
    )
    time.sleep(seconds)  # noqa: TID251 - the point is to stop anywhere
    up.kill()
    up.wait()
    lifecycle.down(NAME)
    assert registry.find(NAME) is None


def test_daemons_that_were_killed_leave_nothing() -> None:
    cluster = lifecycle.up(NAME)
    for name in ("etcd", "trusted-containerd", "sandbox-holder", "sandbox-kubelet"):
        processes.send(processes.required(cluster, name), signal.SIGKILL)
    policy_engine.stop(cluster, "trusted")
    assert lifecycle.down(NAME)
    assert not lifecycle.down(NAME)


def test_clusters_side_by_side_do_not_touch_each_other() -> None:
    one = lifecycle.up(NAME)
    other = lifecycle.up(OTHER)
    lifecycle.down(NAME)
    assert one.slot != other.slot
    assert all(daemon.state != "-" for daemon in processes.recorded(other))
    assert lifecycle.kubectl(other, "get", "nodes", "--output=name").split() == ["node/sandbox", "node/trusted"]


def test_a_living_cluster_is_not_started_over() -> None:
    lifecycle.up(NAME, control_plane_only=True)
    with pytest.raises(Failed, match="up already"):
        lifecycle.up(NAME, control_plane_only=True)


def test_a_record_with_a_strangers_number_ends_nobody() -> None:
    cluster = lifecycle.up(NAME, control_plane_only=True)
    stranger = subprocess.Popen(["sleep", "60"])  # noqa: S607
    record = cluster.processes / "etcd-before"
    record.write_text(re.sub(r"^\d+", str(stranger.pid), (cluster.processes / "etcd").read_text()))
    lifecycle.down(NAME)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
