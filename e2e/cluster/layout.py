"""The names, addresses and folders of one cluster, all derived from its name, its slot and its nodes. Pure.

A slot is a small number that no other cluster of the machine has: it keeps links, addresses and cgroups apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SLOTS = range(10)
ZONES = ("trusted", "sandbox")
ZONE_LABEL = "towline.dev/zone"
TRUSTED_TAINT = "towline.dev/trusted"
CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "localhost/pause:1"
COREDNS_IMAGE = "localhost/coredns:1"


@dataclass(frozen=True, slots=True)
class Node:
    """A node is called by its zone. `number` counts from 1."""

    name: str
    number: int
    tag: str
    net: str
    folder: Path

    @property
    def ip(self) -> str:
        return f"{self.net}.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        return f"{self.net}.{16 + self.number}.0/24"

    @property
    def link(self) -> str:
        """The host's end of the node's cable."""
        return f"{self.tag}n{self.number}"

    @property
    def cgroup(self) -> str:
        """The parent of all pods of the node, in every controller."""
        return f"{self.tag}/{self.name}"

    @property
    def run(self) -> Path:
        """The node's own /run, as the host sees it."""
        return self.folder / "run"

    @property
    def var(self) -> Path:
        """The node's own /var, as the host sees it."""
        return self.folder / "var"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`zones` is empty for a control plane without nodes; that one lives on the loopback device and needs no root."""

    name: str
    slot: int
    zones: tuple[str, ...]
    folder: Path
    bin: Path

    @property
    def tag(self) -> str:
        """The prefix of links and cgroups; link names have at most 15 characters."""
        return f"tl{self.slot}"

    @property
    def net(self) -> str:
        """Nodes have NET.0.0/24, pods NET.16.0/20, Services NET.128.0/17."""
        return f"10.{123 + self.slot}"

    @property
    def nodes(self) -> Iterator[Node]:
        for number, zone in enumerate(self.zones, 1):
            yield Node(zone, number, self.tag, self.net, self.folder / "nodes" / zone)

    @property
    def loopback(self) -> str:
        """All of 127.0.0.0/8 is the machine itself, so each cluster has the usual ports on an address of its own."""
        return f"127.0.{100 + self.slot}.1"

    @property
    def bridge(self) -> str:
        return f"{self.tag}b"

    @property
    def address(self) -> str:
        """Where the machine, as seen from nodes and pods, is: the API server, and whatever a test serves."""
        return f"{self.net}.0.1" if self.zones else self.loopback

    @property
    def api(self) -> str:
        return f"https://{self.address}:6443"

    @property
    def etcd(self) -> str:
        return f"http://{self.loopback}:2379"

    @property
    def pods(self) -> str:
        return f"{self.net}.16.0/20"

    @property
    def services(self) -> str:
        return f"{self.net}.128.0/17"

    @property
    def api_service(self) -> str:
        return f"{self.net}.128.1"

    @property
    def dns_service(self) -> str:
        return f"{self.net}.128.10"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def processes(self) -> Path:
        """One record a daemon, see processes.py."""
        return self.folder / "processes"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.kubeconfig"

    @property
    def kubectl_cache(self) -> Path:
        """kubectl and helm would keep the API's description in the user's home."""
        return self.folder / "kubectl-cache"

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def log(self, daemon: str) -> Path:
        return self.logs / f"{daemon}.log"
