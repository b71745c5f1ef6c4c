"""The network policies of the sandbox namespace, which the operator puts back when somebody removes them. Pure.

The chart renders the same three, and those of the trusted pods, which are its own. A policy only ever opens; what none
of them opens is closed, both ways.
"""

from typing import Any

from towline.manifests.sandbox_pod import TOOL_PORT
from towline.naming import NETWORK_LABEL, ROLE_LABEL

PRIVATE = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""What is not the internet: private, shared, link-local (metadata), benchmarking, multicast, reserved."""


def sandbox_policies(namespace: str, system_namespace: str) -> tuple[dict[str, Any], ...]:
    """Nothing in and nothing out; but the gateway in; but the internet out, for the classes that offer it."""
    gateway = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": system_namespace}},
        "podSelector": {"matchLabels": {ROLE_LABEL: "gateway"}},
    }
    return (
        _policy(namespace, "default-deny", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        _policy(
            namespace,
            "from-gateway",
            {
                "ingress": [{"from": [gateway], "ports": [{"port": TOOL_PORT, "protocol": "TCP"}]}],
                "podSelector": {"matchLabels": {ROLE_LABEL: "sandbox"}},
                "policyTypes": ["Ingress"],
            },
        ),
        _policy(
            namespace,
            "to-internet",
            {
                "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE)}}]}],
                "podSelector": {"matchLabels": {ROLE_LABEL: "sandbox", NETWORK_LABEL: "Internet"}},
                "policyTypes": ["Egress"],
            },
        ),
    )


def _policy(namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        # No word on who manages it: the operator and Helm both apply it, and must not differ.
        "metadata": {"labels": {"app.kubernetes.io/part-of": "towline"}, "name": name, "namespace": namespace},
        "spec": spec,
    }
