"""The pod in which a run's commands are executed: untrusted, without network, credentials or rights. Pure.

Its first process is the tool server, out of an interpreter bundle of its own, so any image will do. There is no probe:
the gateway's dial is the readiness, and a kubelet's probe would cost a second.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from towline.api.quantities import written
from towline.api.snapshot import Sandbox, Snapshot
from towline.events.event import RunRef
from towline.manifests.config import SandboxPods
from towline.manifests.deadline import pod_deadline
from towline.manifests.labels import run_labels
from towline.naming import NETWORK_LABEL, SANDBOX_CONTAINER, sandbox_name

TOOL_PORT = 8080
VOLUME = "/sandbox"
TOOLS = "/opt/towline"

_FIRST_USER, _USERS = 1_000_000, 1_000_000_000


def sandbox_user(run_uid: str) -> int:
    """A uid of the run's own: the kernel counts a user's processes over all pods of a node."""
    return _FIRST_USER + int.from_bytes(hashlib.sha256(run_uid.encode()).digest()[:8], "big") % _USERS


def sandbox_pod(
    run: RunRef,
    snapshot: Snapshot,
    generation: int,
    config: SandboxPods,
    *,
    key: str,
    forbidden: Sequence[str],
    claim: str = "",
) -> dict[str, Any]:
    """The run's `generation`-th sandbox, which proves itself with `key`.

    `forbidden` lists what it must not reach (`tcp:ADDRESS:PORT`, `udp:…`), beside its own node's kubelet. `claim` names
    a PersistentVolumeClaim that keeps the workspace; without one it goes with the pod.
    """
    wanted, user, internet = snapshot.sandbox, sandbox_user(run.uid), snapshot.sandbox.network == "Internet"
    by_init = config.delivery == "InitContainer" or bool(wanted.runtime_class_name)  # gVisor mounts no image volumes
    disk = wanted.disk_bytes or config.limits.disk_bytes
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {
                **run_labels("sandbox", run, generation),
                **({NETWORK_LABEL: wanted.network} if internet else {}),
            },
            "name": sandbox_name(run.uid, generation),
            "namespace": config.namespace,
        },
        "spec": {
            "activeDeadlineSeconds": min(pod_deadline(snapshot) or config.longest_seconds, config.longest_seconds),
            "automountServiceAccountToken": False,
            "containers": [_container(run, generation, wanted, config, key, forbidden, disk)],
            "dnsConfig": {"nameservers": list(config.resolvers) if internet and config.resolvers else ["127.0.0.1"]},
            "dnsPolicy": "None",
            "enableServiceLinks": False,
            "hostIPC": False,
            "hostNetwork": False,
            "hostPID": False,
            "imagePullSecrets": [{"name": name} for name in config.image_pull_secrets],
            **({"initContainers": [_copy_of_tools(config)]} if by_init else {}),
            "nodeSelector": dict(config.placement.node_selector),
            "restartPolicy": "Never",
            **({"runtimeClassName": wanted.runtime_class_name} if wanted.runtime_class_name else {}),
            "securityContext": {
                "fsGroup": user,
                "fsGroupChangePolicy": "OnRootMismatch",
                "runAsGroup": user,
                "runAsNonRoot": True,
                "runAsUser": user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "shareProcessNamespace": False,
            # The first process takes no signal but KILL, so longer grace would only be waited out.
            "terminationGracePeriodSeconds": 1,
            "tolerations": [each.manifest() for each in config.placement.tolerations],
            "volumes": [
                {"name": "sandbox", "persistentVolumeClaim": {"claimName": claim}}
                if claim
                else {"emptyDir": {"sizeLimit": written(disk)}, "name": "sandbox"},
                {"emptyDir": {"sizeLimit": written(disk)}, "name": "tmp"},
                {"emptyDir": {"sizeLimit": "64Mi"}, "name": "tools"}
                if by_init
                else {
                    "image": {"pullPolicy": config.tools.pull_policy, "reference": config.tools.reference},
                    "name": "tools",
                },
            ],
        },
    }


def _container(
    run: RunRef,
    generation: int,
    wanted: Sandbox,
    config: SandboxPods,
    key: str,
    forbidden: Sequence[str],
    disk: int,
) -> dict[str, Any]:
    return {
        "command": [*_python(TOOLS, config.loader), "-m", "toolserver"],
        "env": [
            {"name": "TOWLINE_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "TOWLINE_NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": "TOWLINE_LISTEN", "value": f"tcp:$(TOWLINE_POD_IP):{TOOL_PORT}"},
            {"name": "TOWLINE_SANDBOX_NAME", "value": sandbox_name(run.uid, generation)},
            {"name": "TOWLINE_SANDBOX_KEY", "value": key},
            {"name": "TOWLINE_VOLUME", "value": VOLUME},
            {"name": "TOWLINE_MAX_PROCESSES", "value": str(wanted.max_processes)},
            {"name": "TOWLINE_FORBIDDEN", "value": ",".join(forbidden)},
            {"name": "TOWLINE_NETCHECK_SECONDS", "value": str(config.netcheck_seconds)},
            {"name": "LD_PRELOAD", "value": ""},  # an image's own would be loaded into the tool server
        ],
        "image": wanted.image or config.image.reference,
        "imagePullPolicy": config.image.pull_policy,
        "name": SANDBOX_CONTAINER,
        "ports": [{"containerPort": TOOL_PORT, "name": "tools", "protocol": "TCP"}],
        "resources": _resources(wanted, config, disk),
        "securityContext": _restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"mountPath": VOLUME, "name": "sandbox"},
            {"mountPath": "/tmp", "name": "tmp"},  # noqa: S108 - in the pod
            {"mountPath": TOOLS, "name": "tools", "readOnly": True},
        ],
    }


def _copy_of_tools(config: SandboxPods) -> dict[str, Any]:
    """The tools copy themselves into the pod, by their own interpreter: their image has nothing else."""
    copy = f"import shutil; shutil.copytree('/rt', '{TOOLS}/rt', symlinks=True)"
    return {
        "command": [*_python("", config.loader), "-c", copy],
        "env": [{"name": "LD_PRELOAD", "value": ""}],
        "image": config.tools.reference,
        "imagePullPolicy": config.tools.pull_policy,
        "name": "tools",
        "resources": {
            "limits": {"cpu": "1", "ephemeral-storage": "64Mi", "memory": "64Mi"},
            "requests": {"cpu": "10m", "ephemeral-storage": "64Mi", "memory": "32Mi"},
        },
        "securityContext": _restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"mountPath": TOOLS, "name": "tools"}],
    }


def _python(root: str, loader: str) -> list[str]:
    """The bundle's interpreter through the bundle's loader, where its folder `rt` is at `root`."""
    library = f"{root}/rt/lib"
    return [f"{library}/{loader}", "--library-path", library, f"{root}/rt/python3", "-I", "-S", "-X", "utf8"]


def _restricted() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }


def _resources(wanted: Sandbox, config: SandboxPods, disk: int) -> dict[str, dict[str, str]]:
    """The class' limits, or the installation's; requests are the installation's, never above the limits."""
    cpu = wanted.cpu_millis or config.limits.cpu_millis
    memory = wanted.memory_bytes or config.limits.memory_bytes
    asked = config.requests
    return {
        "limits": {"cpu": _cores(cpu), "ephemeral-storage": written(disk), "memory": written(memory)},
        "requests": {
            "cpu": _cores(min(asked.cpu_millis, cpu)),
            "ephemeral-storage": written(min(asked.disk_bytes, disk)),
            "memory": written(min(asked.memory_bytes, memory)),
        },
    }


def _cores(millis: int) -> str:
    return f"{millis}m" if millis % 1000 else str(millis // 1000)
