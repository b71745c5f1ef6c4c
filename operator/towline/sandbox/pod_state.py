"""What a sandbox pod's JSON says: that it can be dialled, why it does not come up, or how it ended. Pure.

Called by `pod.py`. The container decides, whatever phase a sidecar keeps the pod in; the pod's own reason goes before
it, since then the node or the cluster ended it. The words are those of the condition SandboxReady.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from towline.manifests.sandbox_pod import TOOL_PORT
from towline.naming import SANDBOX_CONTAINER
from towline.sandbox.provider import Loss

NOT_ENFORCED_EXIT = 78
"""The tool server's exit code when it still reached what it must not."""

MAX_MESSAGE = 500
"""Of what others say in a pod's status; a command inside can write some of it."""

_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CANNOT_START = (
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    *("ContainerCannotRun", "StartError"),
)

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodState:
    """At most one of the three; none of them while the pod is on its way."""

    endpoint: str = ""
    trouble: Loss | None = None
    """Why it does not start. It may yet: an image may appear, a node may get room."""
    lost: Loss | None = None


def state_of(pod: Pod | None) -> PodState:
    """None stands for a pod that is not there."""
    if pod is None:
        return PodState(lost=Loss("Deleted", "the pod is gone"))
    status = pod.get("status") or {}
    if (lost := _lost(status)) is not None:
        return PodState(lost=lost)
    if pod["metadata"].get("deletionTimestamp"):
        return PodState(lost=Loss("Deleted", "the pod is being deleted"))
    if "running" in _state(status) and status.get("podIP"):
        return PodState(endpoint=f"http://{_host(status['podIP'])}:{TOOL_PORT}")
    return PodState(trouble=_trouble(status))


def _lost(status: Pod) -> Loss | None:
    ended = _state(status).get("terminated")
    if ended is None and status.get("phase") not in ("Failed", "Succeeded"):
        return None
    ended = ended or _failed_init(status) or {}
    code = ended.get("exitCode")
    said = _short(status.get("message") or ended.get("message"))
    if reason := status.get("reason") or _disruption(status):
        return Loss(reason, said or f"the cluster ended the pod: {reason}")
    if code == NOT_ENFORCED_EXIT:
        return Loss("PolicyNotEnforced", said or "the network policy is not in force")
    if ended.get("reason") == "OOMKilled":
        return Loss("OOMKilled", "the sandbox used more memory than its class allows")
    if code is not None and 128 < code < 160:
        return Loss("Killed", f"the tool server was killed by signal {code - 128}")
    return Loss("Exited", f"the tool server ended with status {code}: {said}")


def _disruption(status: Pod) -> str:
    """Eviction, preemption, a drain: the API server's word for it."""
    for each in status.get("conditions") or ():
        if each["type"] == "DisruptionTarget" and each["status"] == "True":
            return str(each.get("reason") or "Evicted")
    return ""


def _failed_init(status: Pod) -> Mapping[str, Any] | None:
    for each in status.get("initContainerStatuses") or ():
        ended: Mapping[str, Any] | None = (each.get("state") or {}).get("terminated")
        if ended is not None and ended.get("exitCode"):
            return ended
    return None


def _trouble(status: Pod) -> Loss | None:
    waits = [_state(status).get("waiting") or {}]
    waits += [(each.get("state") or {}).get("waiting") or {} for each in status.get("initContainerStatuses") or ()]
    for waiting in waits:
        reason = waiting.get("reason")
        if reason in _PULL:
            return Loss("ImagePullFailed", "the image cannot be pulled; the pod's events say why")
        if reason in _CANNOT_START:
            return Loss("ContainerFailed", f"{reason}: {_short(waiting.get('message'))}")
    for each in status.get("conditions") or ():
        if (each["type"], each["status"], each.get("reason")) == ("PodScheduled", "False", "Unschedulable"):
            return Loss("Unschedulable", _short(each.get("message")))
    return None


def _state(status: Pod) -> Mapping[str, Any]:
    """State of the sandbox's container."""
    for each in status.get("containerStatuses") or ():
        if each["name"] == SANDBOX_CONTAINER:
            state: Mapping[str, Any] = each.get("state") or {}
            return state
    return {}


def _short(text: str | None) -> str:
    return (text or "").strip()[-MAX_MESSAGE:]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
