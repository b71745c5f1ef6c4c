"""etcd, API server, controller manager and scheduler of one cluster: plain processes in the machine's own namespaces.

Without nodes only etcd and the API server run, on the loopback device: no garbage collection, Jobs or scheduling then.
"""

import http.client
import signal
import ssl
from pathlib import Path

from e2e.cluster import cgroups, pki, processes
from e2e.cluster.layout import CLUSTER_DOMAIN, Cluster
from e2e.cluster.shell import wait_until

API_SERVER = "kube-apiserver"
ADMIN = "/O=system:masters/CN=admin"


def start(cluster: Cluster, groups: list[Path]) -> None:
    """Start etcd and the API server; `wait_ready` tells when they serve."""
    pki.make_authority(cluster)
    pki.kubeconfig(cluster, "admin", ADMIN)
    processes.start(cluster, "etcd", etcd(cluster), groups=groups)
    processes.start(cluster, API_SERVER, apiserver(cluster), groups=groups)


def stop_api_server(cluster: Cluster) -> None:
    """Without a farewell, as a machine that loses power."""
    daemon = processes.required(cluster, API_SERVER)
    processes.send(daemon, signal.SIGKILL)
    wait_until("API server ended", lambda: not processes.alive(cluster, API_SERVER), seconds=10)


def start_api_server(cluster: Cluster) -> None:
    """Returns when it serves; does nothing to one that runs."""
    if not processes.alive(cluster, API_SERVER):
        processes.start(cluster, API_SERVER, apiserver(cluster), groups=cgroups.procs(cluster))
    wait_ready(cluster)


def wait_ready(cluster: Cluster) -> None:
    wait_until("API server ready", lambda: ready(cluster), seconds=120)


def start_controllers(cluster: Cluster, groups: list[Path]) -> None:
    processes.start(cluster, "kube-controller-manager", controller_manager(cluster), groups=groups)
    processes.start(cluster, "kube-scheduler", scheduler(cluster), groups=groups)


def ready(cluster: Cluster) -> bool:
    """Whether the API server answers its readiness probe. Raises Failed when one of the processes has ended."""
    processes.required(cluster, "etcd")
    processes.required(cluster, API_SERVER)
    admin = pki.pair(cluster, "admin", ADMIN)
    context = ssl.create_default_context(cafile=str(pki.ca(cluster).certificate))
    context.load_cert_chain(str(admin.certificate), str(admin.key))
    connection = http.client.HTTPSConnection(cluster.address, 6443, context=context, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def etcd(cluster: Cluster) -> list[str | Path]:
    peer = f"http://{cluster.loopback}:2380"
    return [
        cluster.bin / "kube",
        "etcd",
        f"--data-dir={cluster.folder}/etcd",
        "--unsafe-no-fsync",  # a cluster that is thrown away has nothing to lose in a power cut
        "--log-level=warn",
        f"--listen-client-urls={cluster.etcd}",
        f"--advertise-client-urls={cluster.etcd}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def apiserver(cluster: Cluster) -> list[str | Path]:
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
    serving = pki.pair(
        cluster,
        "apiserver",
        "/CN=kube-apiserver",
        [*(f"DNS:{name}" for name in names), f"IP:{cluster.address}", f"IP:{cluster.api_service}"],
    )
    to_kubelet = pki.pair(cluster, "apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver")
    tokens = pki.token_keys(cluster)
    return [
        cluster.bin / "kube",
        API_SERVER,
        f"--etcd-servers={cluster.etcd}",
        f"--advertise-address={cluster.address}",
        f"--bind-address={cluster.address}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={cluster.services}",
        f"--client-ca-file={pki.ca(cluster).certificate}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--kubelet-client-certificate={to_kubelet.certificate}",
        f"--kubelet-client-key={to_kubelet.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={tokens.certificate}",
        f"--service-account-signing-key-file={tokens.key}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-aggregator-routing=true",  # to webhooks by pod address: Service addresses exist on nodes only
        "--allow-privileged=true",
        "--profiling=false",
        # The kubernetes Service may not lead to the loopback device, and without nodes nobody could use it.
        *(() if cluster.zones else ("--endpoint-reconciler-type=none",)),
    ]


def controller_manager(cluster: Cluster) -> list[str | Path]:
    name = "kube-controller-manager"
    return [
        cluster.bin / "kube",
        name,
        f"--kubeconfig={pki.kubeconfig(cluster, name, f'/CN=system:{name}')}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.token_keys(cluster).key}",
        f"--root-ca-file={pki.ca(cluster).certificate}",
        f"--cluster-signing-cert-file={pki.ca(cluster).certificate}",
        f"--cluster-signing-key-file={pki.ca(cluster).key}",
        "--leader-elect=false",
        f"--bind-address={cluster.loopback}",
        "--kube-api-qps=100",  # the default of 20 makes its start last 5 s
        "--kube-api-burst=200",
        f"--flex-volume-plugin-dir={cluster.folder}/volume-plugins",  # it makes the folder, by default in /usr/libexec
        "--profiling=false",
    ]


def scheduler(cluster: Cluster) -> list[str | Path]:
    name = "kube-scheduler"
    return [
        cluster.bin / "kube",
        name,
        f"--kubeconfig={pki.kubeconfig(cluster, name, f'/CN=system:{name}')}",
        "--leader-elect=false",
        f"--bind-address={cluster.loopback}",
        "--profiling=false",
    ]
