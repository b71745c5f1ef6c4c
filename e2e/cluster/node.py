"""One node: a network and a mount namespace in which containerd, kubelet, kube-proxy and the policy engine run.

The namespaces have no names; a sleeping process holds them, and they end with the last process in them. Inside, /run
and /var are the node's own, so what daemons and runtimes leave there is never seen by the machine.
"""

from collections.abc import Iterable
from pathlib import Path

from e2e.cluster import cgroups, network, node_config, pki, places, processes
from e2e.cluster.layout import ZONE_LABEL, Cluster, Node
from e2e.cluster.shell import run, succeeds, wait_until

#: Arguments: the node's /run, its /var. (`ip netns exec` would not do: it mounts /sys anew, without the cgroups.) The
#: empty v2 tree of hybrid machines is hidden, because some runtimes refuse to work beside it.
HOLD = """
set -e
mount --bind "$1" /run
mount --bind "$2" /var
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
exec sleep infinity
"""


def make(cluster: Cluster, node: Node) -> None:
    """Make the node's namespaces and plug it in; nothing runs in it yet but the process that holds them."""
    for folder in ("lib", "log", "cache"):
        (node.var / folder).mkdir(parents=True)
    (node.var / "tmp").mkdir(mode=0o1777)
    (node.var / "run").symlink_to("/run")
    node.run.mkdir()
    hold = ("unshare", "--net", "--mount", "--propagation=private", "--", "sh", "-c", HOLD, "hold", node.run, node.var)
    holder = start(cluster, node, "holder", hold, inside=False)
    wait_until(
        f"{node.name}: namespaces made", lambda: Path(f"/proc/{holder}/comm").read_text() == "sleep\n", seconds=10
    )
    network.connect(cluster, node, holder)


def start_containerd(cluster: Cluster, node: Node) -> None:
    cni, config = node.folder / "cni", node.folder / "containerd.toml"
    cni.mkdir()
    (cni / "10-pods.conflist").write_text(node_config.cni(node))
    config.write_text(node_config.containerd(cluster, cni))
    start(cluster, node, "containerd", (cluster.bin / "containerd", "--config", config))
    wait_until(f"{node.name}: containerd serves", lambda: containerd_serves(cluster, node))


def containerd_serves(cluster: Cluster, node: Node) -> bool:
    processes.required(cluster, daemon(node, "containerd"))
    return succeeds(*enter(cluster, node), cluster.bin / "ctr", "version")


def load(cluster: Cluster, node: Node, archive: Path) -> None:
    """Bring an OCI archive into the node's image store; pods then name it with imagePullPolicy Never."""
    run(*enter(cluster, node), cluster.bin / "ctr", "--namespace=k8s.io", "images", "import", "-", stdin=archive)


def start_kubelet(cluster: Cluster, node: Node) -> None:
    name = f"kubelet-{node.name}"
    subject = f"/O=system:nodes/CN=system:node:{node.name}"
    resolv_conf, config = node.folder / "resolv.conf", node.folder / "kubelet.json"
    resolv_conf.write_text(f"nameserver {cluster.address}\n")  # pods with dnsPolicy Default ask the machine
    serving = pki.pair(cluster, f"{name}-serving", subject, [f"DNS:{node.name}", f"IP:{node.ip}"])
    config.write_text(node_config.kubelet(cluster, node, serving, pki.ca(cluster).certificate, resolv_conf))
    kubelet = (
        cluster.bin / "kube",
        "kubelet",
        f"--config={config}",
        f"--kubeconfig={pki.kubeconfig(cluster, name, subject)}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.ip}",
        f"--node-labels={ZONE_LABEL}={node.name}",
    )
    start(cluster, node, "kubelet", kubelet)


def start_kube_proxy(cluster: Cluster, node: Node) -> None:
    config = node.folder / "kube-proxy.json"
    config.write_text(
        node_config.kube_proxy(cluster, node, pki.kubeconfig(cluster, "kube-proxy", "/CN=system:kube-proxy"))
    )
    start(cluster, node, "kube-proxy", (cluster.bin / "kube", "kube-proxy", f"--config={config}"))


def start_policy_engine(cluster: Cluster, node: Node) -> None:
    """Start it and wait for its first rules. The Node object must exist."""
    netpol = (
        cluster.bin / "netpol",
        f"-kubeconfig={cluster.kubeconfig()}",
        f"-node={node.name}",
        f"-service-cidr={cluster.services}",
    )
    start(cluster, node, "netpol", netpol)
    wait_until(f"{node.name}: policies enforced", lambda: policies_enforced(cluster, node))


def policies_enforced(cluster: Cluster, node: Node) -> bool:
    processes.required(cluster, daemon(node, "netpol"))
    return succeeds(*enter(cluster, node), "iptables", "--list", "KUBE-ROUTER-FORWARD")


def daemon(node: Node, part: str) -> str:
    return f"{node.name}-{part}"


def enter(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """What to put before a command so that it runs in the node."""
    holder = processes.required(cluster, daemon(node, "holder"))
    return ("nsenter", f"--target={holder.pid}", "--net", "--mount", "--")


def start(cluster: Cluster, node: Node, part: str, command: Iterable[str | Path], *, inside: bool = True) -> int:
    env = places.environment()
    env["PATH"] = f"{cluster.bin}:{env.get('PATH', '')}:/usr/sbin:/sbin"  # containerd finds its shim by PATH
    whole = [*(enter(cluster, node) if inside else ()), *command]
    return processes.start(cluster, daemon(node, part), whole, groups=cgroups.procs(cluster), env=env)
