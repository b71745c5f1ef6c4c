"""The pod that holds a run under one epoch: trusted, sealed from inside, and bound to trusted nodes. Pure."""

from typing import Any

from towline.api.common import SecretRef
from towline.api.snapshot import Snapshot
from towline.events.event import RunRef
from towline.manifests.config import HarnessPods
from towline.manifests.deadline import pod_deadline
from towline.manifests.labels import run_labels
from towline.naming import GATEWAY_AUDIENCE, HARNESS_CONTAINER, harness_pod_name

USER = 65532
"""Nobody's uid in any image; no file in ours is its own."""

TOKEN_SECONDS = 600
"""The shortest that the API server grants; the kubelet renews it in place at nine tenths."""

TOKEN_FOLDER = "/var/run/secrets/towline.dev/gateway"  # noqa: S105 - a path
KEY_FOLDER = "/var/run/secrets/towline.dev/model"


def harness_pod(
    run: RunRef, snapshot: Snapshot, epoch: int, config: HarnessPods, *, model_key: SecretRef | None
) -> dict[str, Any]:
    """`model_key` is where the provider's API key is, in the pod's namespace; None for a provider without one."""
    deadline = pod_deadline(snapshot)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": run_labels("harness", run, epoch),
            "name": harness_pod_name(run.uid, epoch),
            "namespace": config.namespace,
        },
        "spec": {
            **({} if deadline is None else {"activeDeadlineSeconds": deadline}),
            "automountServiceAccountToken": False,
            "containers": [_container(run, epoch, config, model_key)],
            "enableServiceLinks": False,
            "hostIPC": False,
            "hostNetwork": False,
            "hostPID": False,
            "imagePullSecrets": [{"name": name} for name in config.image_pull_secrets],
            "nodeSelector": dict(config.placement.node_selector),
            "restartPolicy": "Never",
            "securityContext": {
                "fsGroup": USER,
                "runAsGroup": USER,
                "runAsNonRoot": True,
                "runAsUser": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "serviceAccountName": config.service_account,
            "shareProcessNamespace": False,
            "terminationGracePeriodSeconds": 10,
            "tolerations": [each.manifest() for each in config.placement.tolerations],
            "volumes": _volumes(model_key),
        },
    }


def _container(run: RunRef, epoch: int, config: HarnessPods, model_key: SecretRef | None) -> dict[str, Any]:
    store = {"secretKeyRef": {"key": "url", "name": config.store_secret}}
    key_file = [{"name": "TOWLINE_MODEL_KEY_FILE", "value": f"{KEY_FOLDER}/key"}] if model_key else []
    key_mount = [{"mountPath": KEY_FOLDER, "name": "model-key", "readOnly": True}] if model_key else []
    return {
        "env": [
            {"name": "TOWLINE_REDIS_URL", "valueFrom": store},
            {"name": "TOWLINE_RUN_NAMESPACE", "value": run.namespace},
            {"name": "TOWLINE_RUN_UID", "value": run.uid},
            {"name": "TOWLINE_EPOCH", "value": str(epoch)},
            {"name": "TOWLINE_GATEWAY_URL", "value": config.gateway_url},
            {"name": "TOWLINE_GATEWAY_TOKEN_FILE", "value": f"{TOKEN_FOLDER}/token"},
            *key_file,
            {"name": "TOWLINE_LOG_LEVEL", "value": config.log_level},
        ],
        "image": config.image.reference,
        "imagePullPolicy": config.image.pull_policy,
        "name": HARNESS_CONTAINER,
        "resources": {"limits": dict(config.limits), "requests": dict(config.requests)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"mountPath": "/tmp", "name": "tmp"},  # noqa: S108 - in the pod
            {"mountPath": TOKEN_FOLDER, "name": "gateway-token", "readOnly": True},
            *key_mount,
        ],
    }


def _volumes(model_key: SecretRef | None) -> list[dict[str, Any]]:
    token = {"audience": GATEWAY_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    volumes: list[dict[str, Any]] = [
        {"emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}, "name": "tmp"},
        {"name": "gateway-token", "projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": token}]}},
    ]
    if model_key is not None:
        secret = {
            "defaultMode": 0o440,
            "items": [{"key": model_key.key, "path": "key"}],
            "secretName": model_key.name,
        }
        volumes.append({"name": "model-key", "secret": secret})
    return volumes
