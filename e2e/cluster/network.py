"""The cables of one cluster: a bridge in the machine's own network, and a veth pair from it into each node.

Pods have routed addresses without translation, so the machine reaches them (but no Service addresses). `remove` needs
only the cluster's names, so it also works on what a cut-off `up` left.
"""

from functools import partial

from e2e.cluster import sysctls
from e2e.cluster.layout import Cluster, Node
from e2e.cluster.shell import run, succeeds, wait_until

IN_NODE = (
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
)  # the second: policies between pods of one bridge


def make_bridge(cluster: Cluster) -> None:
    sysctls.put("net.ipv4.ip_forward", "1")
    run("ip", "link", "add", cluster.bridge, "type", "bridge")
    run("ip", "addr", "add", f"{cluster.address}/24", "dev", cluster.bridge)
    run("ip", "link", "set", cluster.bridge, "up")


def connect(cluster: Cluster, node: Node, holder: int) -> None:
    """Plug a node in: `holder` is a process in its network namespace."""
    run("ip", "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", str(holder))
    run("ip", "link", "set", node.link, "master", cluster.bridge, "up")
    inside = ("nsenter", f"--target={holder}", "--net", "--")
    run(*inside, "ip", "link", "set", "lo", "up")
    run(*inside, "ip", "addr", "add", f"{node.ip}/24", "dev", "eth0")
    run(*inside, "ip", "link", "set", "eth0", "up")
    run(*inside, "ip", "route", "add", "default", "via", cluster.address)
    for other in cluster.nodes:
        if other != node:
            run(*inside, "ip", "route", "add", other.pods, "via", other.ip)
    for knob in IN_NODE:
        run(*inside, "sh", "-c", f"echo 1 >/proc/sys/{knob}")
    run("ip", "route", "add", node.pods, "via", node.ip)


def unplug(node: Node) -> None:
    """Nothing passes any more, either way; what runs in the node runs on."""
    run("ip", "link", "set", node.link, "down")


def plug(node: Node) -> None:
    run("ip", "link", "set", node.link, "up")


def remove(cluster: Cluster) -> None:
    for link in (*(node.link for node in cluster.nodes), cluster.bridge):
        run("ip", "link", "delete", link, check=False)
        wait_until(f"link {link} removed", partial(missing, link), seconds=10)


def missing(link: str) -> bool:
    return not succeeds("ip", "link", "show", link)
