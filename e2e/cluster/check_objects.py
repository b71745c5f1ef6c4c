"""The Kubernetes objects of check.py: plain builders, values in, manifests out."""

from typing import Any

from e2e.cluster.layout import TRUSTED_TAINT, ZONE_LABEL
from images.build import reference

HARNESS, SANDBOX = "check-harness", "check-sandbox"
SERVER = 8080
SERVE = ["python3", "-m", "http.server", str(SERVER), "--directory", "/etc"]
TOLERATES_TRUSTED = [{"key": TRUSTED_TAINT, "operator": "Exists"}]

RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security's level `restricted` asks for, and a read-only root."""


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def pod(
    where: str,
    name: str,
    zone: str,
    *,
    program: str | None = None,
    container: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod that serves HTTP, or with `program` one that runs it once. `container` and `spec` add to what is here."""
    body: dict[str, Any] = {"name": "main", "image": reference("python"), "imagePullPolicy": "Never"}
    if program is None:
        body |= {"command": SERVE, "readinessProbe": {"httpGet": {"path": "/", "port": SERVER}, "periodSeconds": 1}}
    else:
        body |= {"command": ["python3", "-c", program]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": where, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {ZONE_LABEL: zone},
            "tolerations": TOLERATES_TRUSTED if zone == "trusted" else [],
            "restartPolicy": "Always" if program is None else "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [body | (container or {})],
        }
        | spec,
    }


def service(where: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": where},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": SERVER}]},
    }


def policy(where: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": where},
        "spec": spec,
    }


def ingress(*, to: str, namespace: str, app: str) -> dict[str, Any]:
    """Only pods called `app` of that namespace may reach the server of pods called `to`."""
    source = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app": app}},
    }
    return {
        "podSelector": {"matchLabels": {"app": to}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [source], "ports": [{"protocol": "TCP", "port": SERVER}]}],
    }


def runtime_class(name: str) -> dict[str, Any]:
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
