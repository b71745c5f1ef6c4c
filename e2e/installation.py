"""Towline as Helm installs it on a cluster, and what the tests ask of it.

Made once a session by the fixture `installation` (conftest.py), or by a program by itself: images built and brought to
the nodes, the chart installed by the real Helm, and afterwards uninstalled, with a look at what is left.
"""

from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from e2e import sandbox_image
from e2e.cluster import lifecycle, places, registry
from e2e.cluster.layout import ZONES, Cluster
from e2e.cluster.shell import run
from e2e.kubectl import Kubectl, Tunnel
from e2e.settings import settings
from images import build as images

CHART = places.REPOSITORY / "charts" / "towline"
VALUES = Path(__file__).with_name("values.yaml")
RELEASE = SYSTEM = "towline-system"
HARNESSES, SANDBOXES = "towline-harness", "towline-sandboxes"
OURS = (
    *("namespaces", "pods", "services", "secrets", "configmaps", "serviceaccounts"),
    *("deployments", "statefulsets", "jobs"),
    *("roles", "rolebindings", "clusterroles", "clusterrolebindings", "networkpolicies", "leases"),
    *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    *("agentruns", "agenttemplates", "modelproviders", "sandboxclasses"),
)
"""Kinds of objects that the chart or the operator makes."""
ON_TRUSTED, ON_SANDBOX = ("operator", "gateway", "harness", "valkey"), ("tools",)


@dataclass(frozen=True)
class Installation:
    """`cluster` is None on one of the user's own, where nothing of its nodes is in our hands."""

    kubectl: Kubectl
    helm: Path
    cluster: Cluster | None

    def install(self, *values: Path) -> None:
        """Or upgrade; returns when everything serves."""
        files = (f"--values={path}" for path in values)
        self._helm("upgrade", RELEASE, CHART, "--install", "--create-namespace", "--wait", "--timeout=3m", *files)

    def restart(self) -> None:
        """For images that are new under the same name."""
        for kind in ("deployments", "statefulsets"):
            mine = (kind, f"--namespace={SYSTEM}", "--selector=app.kubernetes.io/part-of=towline")
            self.kubectl("rollout", "restart", *mine)
            self.kubectl("rollout", "status", *mine, "--timeout=3m")

    def uninstall(self) -> None:
        """The kinds stay, as Helm leaves them; the namespace is not Helm's."""
        self._helm("uninstall", RELEASE, "--wait", "--timeout=3m", "--ignore-not-found")
        self.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=60s")

    def left(self) -> list[str]:
        """Names of what is still there of an uninstalled release, the kinds apart."""
        mine = ("--all-namespaces", "--selector=app.kubernetes.io/part-of=towline", "--output=name")
        return self.kubectl("get", ",".join(OURS), *mine).split()

    def logs(self, role: str, *options: str) -> str:
        namespace = HARNESSES if role == "harness" else SYSTEM
        chosen = (f"--namespace={namespace}", f"--selector=towline.dev/role={role}", "--tail=-1", "--prefix")
        return self.kubectl("logs", *chosen, *options, check=False)

    def address(self, role: str) -> str:
        """Of one pod of the role."""
        namespace = {"sandbox": SANDBOXES, "harness": HARNESSES}.get(role, SYSTEM)
        found = self.kubectl.items("pods", namespace, f"towline.dev/role={role}")
        return str(next(pod["status"]["podIP"] for pod in found if "podIP" in pod["status"]))

    def store_url(self) -> str:
        """The event store's, through a port-forward."""
        return f"redis://:{self.password}@127.0.0.1:{self.tunnel.port}/0"

    @cached_property
    def password(self) -> str:
        secret = self.kubectl.json("get", "secret", "towline-store", f"--namespace={SYSTEM}")
        return b64decode(secret["data"]["password"]).decode()

    @cached_property
    def tunnel(self) -> Tunnel:
        return Tunnel(self.kubectl, SYSTEM, "service/towline-store", 6379)

    def _helm(self, *arguments: str | Path) -> None:
        where = (f"--kubeconfig={self.kubectl.kubeconfig}", f"--namespace={SYSTEM}")
        homes = {f"HELM_{kind}_HOME": str(self.kubectl.cache / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        run(self.helm, *arguments, *where, env=places.environment() | homes)


def on(cluster: Cluster) -> Installation:
    kubectl = Kubectl(cluster.bin / "kubectl", cluster.kubeconfig(), cluster.kubectl_cache)
    return Installation(kubectl, cluster.bin / "helm", cluster)


def load_images(cluster: Cluster) -> None:
    """Build all, and bring each to the nodes where it is run; the tests' own image to both, for probes (probe.py)."""
    cache = places.images()
    for zone, names in zip(ZONES, (ON_TRUSTED, ON_SANDBOX), strict=True):
        lifecycle.load(cluster, [images.archive(name, cache) for name in names], [zone])
    lifecycle.load(cluster, [sandbox_image.archive(cache)], ZONES)


@contextmanager
def installed(name: str) -> Iterator[Installation]:
    """On the cluster that settings.py names and that is up, or on one called `name` for as long as it is needed."""
    given = settings()
    cluster = registry.get(given.cluster) if given.cluster else lifecycle.up(name)
    installation = on(cluster)
    try:
        if not given.as_is:
            load_images(cluster)
            installation.install(VALUES)
            if given.cluster:
                installation.restart()  # it may have run something older
        yield installation
    finally:
        installation.tunnel.close()
        if not (given.as_is or given.keep):
            installation.uninstall()
        if not given.cluster:
            lifecycle.down(cluster.name)
