"""What a pod's JSON says of its deciding container: that it runs, why it does not start, how it ended. Pure.

Read by the controller for harness and sandbox pods, and by the `pod` sandbox provider. The container tells how its
program ended, whatever phase a sidecar keeps the pod in; the pod itself tells why, when node or cluster ended it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from towline.clock import moment

MAX_MESSAGE = 500
"""Of what kubelet, runtime and program say: enough for a person, and far below a condition's bound."""

_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CANNOT_START = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ContainerCannotRun",
    "StartError",
)
VOLUME_NOT_BOUND = "VolumeNotBound"
_ABOUT_VOLUMES = re.compile("persistent ?volume(?!'s node)|pvc|free storage", re.IGNORECASE)
"""In the scheduler's words, which name no reason of their own for a claim that it cannot bind. One that is bound, to a
volume of a node that is away, waits for that node."""

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a pod ended. `reason` is one word (Completed, Error, OOMKilled, Evicted, Deleted, …)."""

    reason: str
    message: str = ""
    exit_code: int | None = None
    at: datetime | None = None
    disruption: bool = False
    """Ended from outside (eviction, drain, preemption, deletion), through no fault of the program."""

    @property
    def signal(self) -> int | None:
        """A shell's convention, which container runtimes follow: 128 and the signal."""
        return self.exit_code - 128 if self.exit_code is not None and 128 < self.exit_code < 160 else None

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return f"{self.reason}{code}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something does not come about, as a condition's reason and message."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    ip: str = ""
    running: bool = False
    """The deciding container runs."""
    started: datetime | None = None
    ended: Ended | None = None
    trouble: Trouble | None = None
    """Why it does not start. It may yet: an image may appear, a node may get room."""


def status_of_pod(pod: Part, container: str) -> PodStatus:
    """`container` is the deciding one's name; a pod that has but one needs no name."""
    status = pod.get("status") or {}
    state = _state(status, container)
    return PodStatus(
        ip=status.get("podIP") or "",
        running="running" in state,
        started=moment((state.get("running") or state.get("terminated") or {}).get("startedAt")),
        ended=_ended(status, state),
        trouble=_trouble(status, state, _claims(pod)),
    )


def _state(status: Part, name: str) -> Part:
    found: list[Part] = status.get("containerStatuses") or []
    decides = next((each for each in found if each["name"] == name), found[0] if len(found) == 1 else {})
    return decides.get("state") or {}


def _ended(status: Part, state: Part) -> Ended | None:
    terminated = state.get("terminated")
    if terminated is None and status.get("phase") not in ("Failed", "Succeeded"):
        return None
    terminated = terminated or _failed_init(status) or {}
    disrupted = next((each for each in _conditions(status) if each["type"] == "DisruptionTarget"), None)
    by_node = str(status.get("reason") or "")
    reason = by_node or str(
        terminated.get("reason") or ("Completed" if status.get("phase") == "Succeeded" else "Error")
    )
    if disrupted is not None and disrupted.get("status") == "True" and not by_node:
        reason = str(disrupted.get("reason") or reason)
    return Ended(
        reason=reason,
        message=_short(status.get("message") or terminated.get("message")),
        exit_code=terminated.get("exitCode"),
        at=moment(terminated.get("finishedAt")),
        disruption=bool(by_node) or (disrupted is not None and disrupted.get("status") == "True"),
    )


def _failed_init(status: Part) -> Part | None:
    for each in status.get("initContainerStatuses") or ():
        terminated: Part | None = (each.get("state") or {}).get("terminated")
        if terminated is not None and terminated.get("exitCode"):
            return terminated
    return None


def _claims(pod: Part) -> list[str]:
    """Names of the PersistentVolumeClaims that it mounts."""
    mounted = [each.get("persistentVolumeClaim") for each in (pod.get("spec") or {}).get("volumes") or ()]
    return [each["claimName"] for each in mounted if each]


def _trouble(status: Part, state: Part, claims: list[str]) -> Trouble | None:
    if status.get("phase") not in ("Pending", None):
        return None
    waits = [state.get("waiting")]
    waits += [(each.get("state") or {}).get("waiting") for each in status.get("initContainerStatuses") or ()]
    for waiting in waits:
        reason = (waiting or {}).get("reason")
        if reason in _PULL:
            # The kubelet's words alternate between the failure and its back-off; ours must not, or the status would.
            return Trouble("ImagePullFailed", "the pod's events say why its image cannot be pulled")
        if reason in _CANNOT_START:
            message = _short((waiting or {}).get("message"))
            return Trouble("ContainerFailed", f"{reason}: {message}"[:MAX_MESSAGE] if message else reason)
    for each in _conditions(status):
        if each["type"] == "PodScheduled" and each["status"] == "False" and each.get("reason") == "Unschedulable":
            message = str(each.get("message") or "")[:MAX_MESSAGE]
            if claims and _ABOUT_VOLUMES.search(message):
                return Trouble(VOLUME_NOT_BOUND, f"no volume for PersistentVolumeClaim {', '.join(claims)}: {message}")
            return Trouble("Unschedulable", message)
    return None


def _conditions(status: Part) -> list[Part]:
    return status.get("conditions") or []


def _short(text: Any) -> str:
    """The end of it, which has the cause."""
    return str(text or "").strip()[-MAX_MESSAGE:]
