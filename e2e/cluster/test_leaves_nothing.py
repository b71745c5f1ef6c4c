"""`down` removes everything, whatever state the cluster is in: `python -m pytest e2e/cluster`, as root, about a minute.

Needs the built programs. Other clusters may stand, come and go meanwhile: only what bears these clusters' names counts.
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
from e2e.cluster.layout import SLOTS, ZONES, Cluster
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
    before, settings = traces(), kernel_settings()
    yield
    lifecycle.down(NAME)
    lifecycle.down(OTHER)
    left: set[str] = set()

    def nothing() -> bool:
        left.clear()
        left.update(traces() - before)
        return not left

    try:
        wait_until("nothing is left", nothing, seconds=5)
    except Failed as failure:
        raise AssertionError(f"{failure}:\n" + "\n".join(sorted(left))) from failure
    if not strangers_with_nodes():  # theirs keep the settings changed
        assert kernel_settings() == settings


def traces() -> set[str]:
    """Whatever bears the name of a cluster that is not in the registry, or is one of these tests'.

    A cluster is in the registry before anything of it exists, and until all of it is gone: so it is asked last.
    """
    seen = {slot: set(of_slot(Cluster(NAME, slot, ZONES, places.state() / NAME, Path()))) for slot in SLOTS}
    folders = {name: set(of_folder(places.state() / name)) for name in (NAME, OTHER)}
    theirs = {cluster.slot for cluster in registry.every() if cluster.name not in (NAME, OTHER)}
    found = [seen[slot] for slot in seen.keys() - theirs]
    return set().union(*found, *folders.values())


def of_slot(cluster: Cluster) -> Iterator[str]:
    """Links, routes, firewall rules, cgroups and who is in them, by the names that a slot's clusters give."""
    tag, net = re.compile(rf"\b{cluster.tag}(b|n\d)\b"), re.compile(rf"\b{re.escape(cluster.net)}\.\d+\.\d+")
    for command in (("ip", "-oneline", "link"), ("ip", "route"), ("iptables", "--list-rules")):
        yield from (line for line in run(*command).splitlines() if tag.search(line) or net.search(line))
    yield from (f"cgroup {group}" for group in cgroups.groups(cluster))
    yield from (f"process {pid} of {cluster.tag}" for pid in cgroups.members(cluster))


def of_folder(folder: Path) -> Iterator[str]:
    """A cluster's folder, what is mounted from or to it, and the processes that name it: also those in no cgroup."""
    if folder.exists():
        yield str(folder)
    yield from (line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{folder}/" in line)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in line:
            yield f"process {process.name}: {line}"


def kernel_settings() -> dict[str, str]:
    return {name: sysctls.value(name) for name in sysctls.CHANGED}


def strangers_with_nodes() -> list[Cluster]:
    return [cluster for cluster in registry.every() if cluster.zones and cluster.name not in (NAME, OTHER)]


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
