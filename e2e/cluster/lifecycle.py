"""Bring a cluster up, take it down, tell how it is: the verbs of the command line, and what tests call.

A machine may have several clusters side by side, each by its name.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from e2e.cluster import (
    build,
    cgroups,
    controlplane,
    host,
    network,
    node,
    places,
    processes,
    registry,
    sysctls,
    system_images,
)
from e2e.cluster.layout import ZONES, Cluster
from e2e.cluster.shell import Failed, run, wait_until

DNS_MANIFEST = places.HERE / "dns.yaml"


def up(name: str, *, control_plane_only: bool = False) -> Cluster:
    """Returns when everything serves: nodes Ready, policies enforced, DNS answering.

    What an earlier cluster of that name left behind is removed first; one that lives is an error.
    """
    zones = () if control_plane_only else ZONES
    check_machine(zones)
    cluster = enter(name, zones)
    if not zones:
        controlplane.start(cluster, [])
        controlplane.wait_ready(cluster)
        return cluster
    cgroups.create(cluster)
    network.make_bridge(cluster)
    controlplane.start(cluster, cgroups.procs(cluster))
    for each in cluster.nodes:  # while the API server comes up
        node.make(cluster, each)
        node.start_containerd(cluster, each)
    load(cluster, system_images.archives(cluster.bin), zones)
    controlplane.wait_ready(cluster)
    controlplane.start_controllers(cluster, cgroups.procs(cluster))
    for each in cluster.nodes:
        node.start_kubelet(cluster, each)
        node.start_kube_proxy(cluster, each)
    kubectl(cluster, "apply", "-f", "-", stdin=DNS_MANIFEST.read_text().replace("DNS_SERVICE", cluster.dns_service))
    for each in cluster.nodes:
        wait_until(f"node {each.name} Ready", partial(node_ready, cluster, each.name))
        node.start_policy_engine(cluster, each)
    wait_until("cluster DNS ready", partial(dns_ready, cluster))
    return cluster


def check_machine(zones: tuple[str, ...]) -> None:
    """Raises Failed with the reason why a cluster cannot be run here."""
    if not zones:
        host.require(host.TO_RUN_CONTROL_PLANE)
        return
    host.require_root()
    host.require(host.TO_RUN_CONTROL_PLANE | host.TO_RUN_NODES)
    host.require_kernel(cgroups.hierarchies())
    for path in (places.state().resolve(), places.cache().resolve()):
        if any(path.is_relative_to(hidden) for hidden in ("/run", "/var")):
            raise Failed(f"{path}: nodes have a /run and a /var of their own; set XDG_STATE_HOME and XDG_CACHE_HOME")


def enter(name: str, zones: tuple[str, ...]) -> Cluster:
    bin_folder = build.built()
    if (old := registry.find(name)) is not None:
        if any(daemon.state != "-" for daemon in processes.recorded(old)):
            raise Failed(f"cluster {name} is up already; `down --name {name}` ends it")
        down(name)
    with registry.locked():
        if zones:
            sysctls.save(saved_sysctls())
        return registry.enter(name, zones, bin_folder)


def down(name: str) -> bool:
    """Remove everything of the cluster, whatever state it is in; returns whether there was one. May be repeated."""
    cluster = registry.find(name)
    if cluster is None:
        return False
    processes.kill_all(cluster)
    if cluster.zones:
        cgroups.kill_and_remove(cluster)
        network.remove(cluster)
    with registry.locked():
        if not any(other.zones for other in registry.every() if other != cluster):
            sysctls.restore(saved_sysctls())
        registry.leave(cluster)
    return True


def load(cluster: Cluster, archives: Sequence[Path], zones: Sequence[str]) -> None:
    """Bring OCI archives into the image stores of the named nodes."""
    for zone in zones:
        for archive in archives:
            node.load(cluster, cluster.node(zone), archive)


def status(cluster: Cluster) -> list[str]:
    """One line a daemon: name, number, state, memory."""
    lines = []
    for daemon in processes.recorded(cluster):
        state = {"-": "ENDED", "T": "STOPPED"}.get(daemon.state, "up")
        lines.append(f"{daemon.name:<28} {daemon.pid:>8}  {state:<8} {processes.memory_mib(daemon):>5} MiB")
    return lines


def environment(cluster: Cluster) -> list[str]:
    """The lines a shell evaluates so that kubectl and helm use the cluster."""
    return [
        f"export KUBECONFIG={cluster.kubeconfig()}",
        f"export KUBECACHEDIR={cluster.kubectl_cache}",
        f"export PATH={cluster.bin}:$PATH",
    ]


def kubectl(cluster: Cluster, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
    ours = (f"--kubeconfig={cluster.kubeconfig()}", f"--cache-dir={cluster.kubectl_cache}")
    return run(cluster.bin / "kubectl", *ours, *arguments, stdin=stdin, check=check)


def node_ready(cluster: Cluster, name: str) -> bool:
    processes.required(cluster, f"{name}-kubelet")
    got = kubectl(cluster, "get", "node", name, "--output=json", check=False)
    conditions = json.loads(got)["status"]["conditions"] if got else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def dns_ready(cluster: Cluster) -> bool:
    deployment = json.loads(
        kubectl(cluster, "get", "deployment", "coredns", "--namespace=kube-system", "--output=json")
    )
    return bool(deployment["status"].get("readyReplicas") == 1)


def saved_sysctls() -> Path:
    return places.state() / "sysctls.json"
