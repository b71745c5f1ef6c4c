"""A pod's JSON, as kubelet, scheduler and eviction leave it, to what matters of it."""

from typing import Any

import pytest

from towline.controller.pods import pod_seen
from towline.kube.pod_status import Ended, Trouble

UID = "0a1b2c3d-0000-4000-8000-000000000001"


def pod(role: str = "harness", *, metadata: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    number = {"harness": "towline.dev/epoch", "sandbox": "towline.dev/generation"}[role]
    labels = {"towline.dev/role": role, "towline.dev/run-uid": UID, number: "2"}
    base = {"name": f"{role}-2", "uid": "p", "resourceVersion": "7", "labels": labels}
    return {"metadata": base | (metadata or {}), "status": status}


def container(name: str = "harness", **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


TERMINATED = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-29T12:00:09Z"}


def test_a_running_pod_has_its_number_its_address_and_its_start() -> None:
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    state = container("sandbox", running={"startedAt": "2026-11-29T12:00:00Z"})

    seen = pod_seen(pod("sandbox", **status, containerStatuses=[state]))

    assert (seen.number, seen.harness, seen.ip, seen.running, seen.version) == (2, False, "10.0.0.1", True, 7)
    assert seen.started is not None
    assert seen.alive


def test_the_deciding_container_counts_whatever_a_sidecar_does() -> None:
    sidecar = container("proxy", running={"startedAt": "2026-11-29T12:00:00Z"})

    seen = pod_seen(pod(phase="Running", containerStatuses=[sidecar, container(terminated=TERMINATED)]))

    assert seen.ended is not None
    assert (seen.ended.reason, seen.ended.exit_code, seen.ended.signal) == ("OOMKilled", 137, 9)
    assert not seen.ended.disruption


ENDS: dict[str, tuple[dict[str, Any], tuple[str, int | None, bool]]] = {
    "completed": (
        {"phase": "Succeeded", "containerStatuses": [container(terminated={"exitCode": 0, "reason": "Completed"})]},
        ("Completed", 0, False),
    ),
    "crashed": (
        {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 1, "reason": "Error"})]},
        ("Error", 1, False),
    ),
    "evicted before it had a container": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        ("Evicted", None, True),
    ),
    "evicted while it ran": (
        {"phase": "Failed", "reason": "Evicted", "containerStatuses": [container(terminated=TERMINATED)]},
        ("Evicted", 137, True),
    ),
    "drained": (
        {
            "phase": "Failed",
            "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            "containerStatuses": [container(terminated={"exitCode": 11, "reason": "Error"})],
        },
        ("EvictionByEvictionAPI", 11, True),
    ),
    "shut down with its node": (
        {"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to imminent shutdown."},
        ("Terminated", None, True),
    ),
    "its init container failed": (
        {
            "phase": "Failed",
            "initContainerStatuses": [{"name": "tools", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}],
        },
        ("Error", 3, False),
    ),
}


@pytest.mark.parametrize(("status", "told"), ENDS.values(), ids=ENDS)
def test_how_a_pod_ended(status: dict[str, Any], told: tuple[str, int | None, bool]) -> None:
    ended = pod_seen(pod(**status)).ended

    assert isinstance(ended, Ended)
    assert (ended.reason, ended.exit_code, ended.disruption) == told


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
TROUBLES: dict[str, tuple[dict[str, Any], Trouble | None]] = {
    "no node": ({"phase": "Pending", "conditions": [UNSCHEDULABLE]}, Trouble("Unschedulable", "0/2 nodes")),
    "a bad configuration": (
        {
            "phase": "Pending",
            "containerStatuses": [container(waiting={"reason": "CreateContainerConfigError", "message": "no secret"})],
        },
        Trouble("ContainerFailed", "CreateContainerConfigError: no secret"),
    ),
    "nothing but time": (
        {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ContainerCreating"})]},
        None,
    ),
}


@pytest.mark.parametrize(("status", "told"), TROUBLES.values(), ids=TROUBLES)
def test_why_a_pod_does_not_start(status: dict[str, Any], told: Trouble | None) -> None:
    assert pod_seen(pod(**status)).trouble == told


@pytest.mark.parametrize(
    "words",
    [
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        "0/2 nodes are available: 1 node(s) didn't find available persistent volumes to bind",
        "0/2 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
    ],
)
def test_a_claim_without_a_volume_is_told_by_its_name(words: str) -> None:
    waiting = pod("sandbox", phase="Pending", conditions=[UNSCHEDULABLE | {"message": words}])
    mounted = {"volumes": [{"name": "tmp"}, {"name": "sandbox", "persistentVolumeClaim": {"claimName": "w-1"}}]}

    assert pod_seen(waiting | {"spec": mounted}).trouble == Trouble(
        "VolumeNotBound", f"no volume for PersistentVolumeClaim w-1: {words}"
    )


@pytest.mark.parametrize(
    "words",
    ["0/2 nodes", "1 node(s) had untolerated taint(s), 1 node(s) didn't match PersistentVolume's node affinity"],
)
def test_a_pod_with_a_claim_may_lack_nothing_but_a_node(words: str) -> None:
    waiting = pod("sandbox", phase="Pending", conditions=[UNSCHEDULABLE | {"message": words}])
    mounted = {"volumes": [{"name": "sandbox", "persistentVolumeClaim": {"claimName": "w-1"}}]}

    assert pod_seen(waiting | {"spec": mounted}).trouble == Trouble("Unschedulable", words)


def test_the_kubelets_changing_words_about_an_image_are_one_trouble() -> None:
    waits = [{"reason": "ErrImagePull", "message": "not found"}, {"reason": "ImagePullBackOff", "message": "Back-off"}]

    told = {pod_seen(pod(phase="Pending", containerStatuses=[container(waiting=each)])).trouble for each in waits}

    assert len(told) == 1
    assert {each.reason for each in told if each} == {"ImagePullFailed"}


def test_a_pod_being_deleted_has_a_deadline_and_a_forced_one_says_so() -> None:
    when = {"deletionTimestamp": "2026-11-29T12:00:10Z", "deletionGracePeriodSeconds": 10}
    graceful = pod_seen(pod(metadata=when, phase="Running"))
    forced = pod_seen(pod(metadata=when | {"deletionGracePeriodSeconds": 0}, phase="Running"))

    assert (graceful.deleting, graceful.forced) == (True, False)
    assert (forced.deleting, forced.forced) == (True, True)


def test_a_pod_without_a_status_or_labels_is_no_one() -> None:
    seen = pod_seen({"metadata": {"name": "x", "uid": "p"}})

    assert (seen.run_uid, seen.number, seen.alive, seen.trouble) == ("", 0, True, None)
