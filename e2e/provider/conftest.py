"""A namespace like that of the sandboxes, into which the test process may dial."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import lifecycle
from e2e.cluster.layout import Cluster
from e2e.conftest import Apply

NAMESPACE = "e2e-sandboxes"


@pytest.fixture(scope="session")
def namespace(cluster: Cluster, apply: Apply) -> Iterator[str]:
    """Restricted, closed both ways, but for the machine's own address, which stands for the gateway."""
    restricted = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    us = {"ipBlock": {"cidr": f"{cluster.address}/32"}}
    apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": restricted}},
        policy("default-deny", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        policy(
            "from-test",
            {
                "ingress": [{"from": [us], "ports": [{"port": 8080, "protocol": "TCP"}]}],
                "podSelector": {},
                "policyTypes": ["Ingress"],
            },
        ),
    )
    yield NAMESPACE
    lifecycle.kubectl(cluster, "delete", "namespace", NAMESPACE, "--timeout=60s")


def policy(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
