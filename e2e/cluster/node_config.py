"""The configuration files of one node: values in, text out. Pure.

A node has a /run and a /var of its own (node.py), so most paths are the usual ones and are not named here.
"""

import json
from pathlib import Path

from e2e.cluster.host import CNI_PLUGINS
from e2e.cluster.layout import CLUSTER_DOMAIN, PAUSE_IMAGE, TRUSTED_TAINT, Cluster, Node
from e2e.cluster.pki import Pair

#: `sandboxed` is runc by another name: for tests of runtimeClassName.
RUNTIME_HANDLERS = ("runc", "sandboxed")

CONTAINERD = """\
version = 4
imports = []
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # pods would not start where CAP_SYS_RESOURCE is missing
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_plugins}"]
    conf_dir = "{cni_config}"
"""

HANDLER = """
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
    BinaryName = "{runc}"
    SystemdCgroup = false
"""


def containerd(cluster: Cluster, cni_config: Path) -> str:
    text = CONTAINERD.format(pause=PAUSE_IMAGE, cni_plugins=CNI_PLUGINS, cni_config=cni_config)
    return text + "".join(HANDLER.format(name=name, runc=cluster.bin / "runc") for name in RUNTIME_HANDLERS)


def cni(node: Node) -> str:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}, indent=1)


def kubelet(cluster: Cluster, node: Node, serving: Pair, client_ca: Path, resolv_conf: Path) -> str:
    taints = [{"key": TRUSTED_TAINT, "value": "true", "effect": "NoSchedule"}] if node.name == "trusted" else []
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "registerWithTaints": taints,
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [cluster.dns_service],
        "resolvConf": str(resolv_conf),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "seccompDefault": True,
        "maxPods": 110,
        "serializeImagePulls": False,
        # Both nodes see the whole machine's disk and memory: only a real shortage may evict, and no image comes twice.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
    return json.dumps(config, indent=1)


def kube_proxy(cluster: Cluster, node: Node, kubeconfig: Path) -> str:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": cluster.pods,
        "hostnameOverride": node.name,
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0},  # the table's size is the whole machine's
    }
    return json.dumps(config, indent=1)
