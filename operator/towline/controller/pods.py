"""A pod's JSON to what matters of it. Pure.

Called by `observe.py` for harness and sandbox pods alike. The deciding container tells how the program ended, whatever
phase a sidecar keeps the pod in; the pod itself tells why, when the node ended it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from towline.controller.seen import Ended, PodSeen, Trouble
from towline.naming import (
    EPOCH_LABEL,
    GENERATION_LABEL,
    HARNESS_CONTAINER,
    ROLE_LABEL,
    RUN_NAMESPACE_LABEL,
    RUN_UID_LABEL,
    SANDBOX_CONTAINER,
)

MAX_MESSAGE = 500
"""Of what kubelet and runtime say: enough for a person, and far below a condition's bound."""

_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CANNOT_START = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ContainerCannotRun",
    "StartError",
)


def moment(text: str | None) -> datetime | None:
    """A time of the API server's."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def pod_seen(pod: Mapping[str, Any]) -> PodSeen:
    """A pod with labels of ours; of metadata alone, what they say. One without a number has 0, which nothing counts."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    harness = labels.get(ROLE_LABEL) == "harness"
    number = labels.get(EPOCH_LABEL if harness else GENERATION_LABEL, "")
    container = _container(status, HARNESS_CONTAINER if harness else SANDBOX_CONTAINER)
    state = container.get("state") or {}
    return PodSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        run_uid=labels.get(RUN_UID_LABEL, ""),
        run_namespace=labels.get(RUN_NAMESPACE_LABEL, ""),
        harness=harness,
        number=int(number) if number.isdigit() else 0,
        version=int(metadata.get("resourceVersion") or 0),
        ip=status.get("podIP") or "",
        running="running" in state,
        started=moment((state.get("running") or state.get("terminated") or {}).get("startedAt")),
        deadline=moment(metadata.get("deletionTimestamp")),
        forced=bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") == 0,
        ended=_ended(status, state),
        trouble=_trouble(status, state),
    )


def _container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: list[Mapping[str, Any]] = status.get("containerStatuses") or []
    return next((each for each in found if each["name"] == name), found[0] if len(found) == 1 else {})


def _ended(status: Mapping[str, Any], state: Mapping[str, Any]) -> Ended | None:
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
    message = status.get("message") or terminated.get("message") or ""
    return Ended(
        reason=reason,
        message=str(message).strip()[-MAX_MESSAGE:],
        exit_code=terminated.get("exitCode"),
        at=moment(terminated.get("finishedAt")),
        disruption=bool(by_node) or (disrupted is not None and disrupted.get("status") == "True"),
    )


def _failed_init(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for each in status.get("initContainerStatuses") or ():
        terminated: Mapping[str, Any] | None = (each.get("state") or {}).get("terminated")
        if terminated is not None and terminated.get("exitCode"):
            return terminated
    return None


def _trouble(status: Mapping[str, Any], state: Mapping[str, Any]) -> Trouble | None:
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
            return Trouble("ContainerFailed", _said(reason, waiting))
    for each in _conditions(status):
        if each["type"] == "PodScheduled" and each["status"] == "False" and each.get("reason") == "Unschedulable":
            return Trouble("Unschedulable", str(each.get("message") or "")[:MAX_MESSAGE])
    return None


def _said(reason: str, waiting: Mapping[str, Any] | None) -> str:
    message = str((waiting or {}).get("message") or "").strip()
    return f"{reason}: {message}"[:MAX_MESSAGE] if message else reason


def _conditions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return status.get("conditions") or []
