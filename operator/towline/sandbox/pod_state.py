"""What became of a sandbox pod, in the words of the condition SandboxReady: endpoint, trouble or loss. Pure.

Called by `pod.py` and by the controller's plan, which so tell one loss in one way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from towline.kube.pod_status import Ended, status_of_pod
from towline.manifests.sandbox_pod import TOOL_PORT
from towline.naming import SANDBOX_CONTAINER
from towline.sandbox.provider import Loss

POLICY_NOT_ENFORCED = "PolicyNotEnforced"
NOT_ENFORCED_EXIT = 78
"""The tool server's exit code when it still reached what it must not."""

GONE = Loss("Deleted", "the pod is gone")
GOING = Loss("Deleted", "the pod is being deleted")


@dataclass(frozen=True, slots=True)
class PodState:
    """At most one of the three; none of them while the pod is on its way."""

    endpoint: str = ""
    trouble: Loss | None = None
    """Why it does not start. It may yet: an image may appear, a node may get room."""
    lost: Loss | None = None


def state_of(pod: Mapping[str, Any] | None) -> PodState:
    """None stands for a pod that is not there."""
    if pod is None:
        return PodState(lost=GONE)
    status = status_of_pod(pod, SANDBOX_CONTAINER)
    if status.ended is not None:
        return PodState(lost=loss_of(status.ended))
    if pod["metadata"].get("deletionTimestamp"):
        return PodState(lost=GOING)
    if status.running and status.ip:
        return PodState(endpoint=endpoint(status.ip))
    return PodState(trouble=Loss(status.trouble.reason, status.trouble.message) if status.trouble else None)


def endpoint(ip: str) -> str:
    """Where the gateway dials the tool server of a pod."""
    return f"http://[{ip}]:{TOOL_PORT}" if ":" in ip else f"http://{ip}:{TOOL_PORT}"


def loss_of(ended: Ended) -> Loss:
    """Why a sandbox is no more, from how its pod ended."""
    code = ended.exit_code
    if ended.disruption:
        return Loss(ended.reason, ended.message or f"the cluster ended the pod: {ended.reason}")
    if code == NOT_ENFORCED_EXIT:
        return Loss(POLICY_NOT_ENFORCED, ended.message or "the network policy is not in force")
    if ended.reason == "OOMKilled":
        return Loss("OOMKilled", "the sandbox used more memory than its class allows")
    if ended.signal is not None:
        return Loss("Killed", f"the tool server was killed by signal {ended.signal}")
    return Loss("Exited", f"the tool server ended with status {code}: {ended.message}")
