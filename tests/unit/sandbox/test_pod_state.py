"""What becomes of a sandbox pod, in the words of the condition SandboxReady."""

from typing import Any

import pytest

from towline.sandbox.pod_state import state_of
from towline.sandbox.provider import Loss


def pod(*, deleting: bool = False, **status: Any) -> dict[str, Any]:
    metadata = {"name": "sandbox-1", **({"deletionTimestamp": "2026-11-29T12:00:00Z"} if deleting else {})}
    return {"metadata": metadata, "status": {"phase": "Pending", **status}}


def container(**state: Any) -> dict[str, Any]:
    sidecar = {"name": "mesh", "state": {"running": {}}}
    return {"containerStatuses": [sidecar, {"name": "sandbox", "state": state}]}


def ended(code: int, **more: Any) -> dict[str, Any]:
    return {"phase": "Failed", **container(terminated={"exitCode": code, **more})}


def test_a_running_container_with_an_address_can_be_dialled():
    running = container(running={"startedAt": "2026-11-29T12:00:00Z"})

    assert state_of(pod(phase="Running", podIP="10.0.0.7", **running)).endpoint == "http://10.0.0.7:8080"
    assert state_of(pod(phase="Running", podIP="fd00::7", **running)).endpoint == "http://[fd00::7]:8080"


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        container(waiting={"reason": "ContainerCreating"}),
        {"phase": "Running", **container(running={})},
    ],
)
def test_one_on_its_way_is_neither_there_nor_in_trouble(status):
    state = state_of(pod(**status))

    assert (state.endpoint, state.trouble, state.lost) == ("", None, None)


@pytest.mark.parametrize("word", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
def test_the_kubelets_changing_words_for_a_missing_image_are_one(word):
    waiting = {"waiting": {"reason": word, "message": "back-off pulling for 5m"}}

    of_the_sandbox = state_of(pod(**container(**waiting)))
    of_the_tools = state_of(pod(initContainerStatuses=[{"name": "tools", "state": waiting}]))

    assert of_the_sandbox == of_the_tools
    assert of_the_sandbox.trouble.reason == "ImagePullFailed"


def test_a_container_that_cannot_be_made_says_why():
    waiting = {"reason": "CreateContainerConfigError", "message": "no such thing"}

    assert state_of(pod(**container(waiting=waiting))).trouble == Loss(
        "ContainerFailed", "CreateContainerConfigError: no such thing"
    )


def test_no_node_with_room_is_told_in_the_schedulers_words():
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available",
    }

    assert state_of(pod(conditions=[condition])).trouble == Loss("Unschedulable", "0/2 nodes are available")


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        (ended(137, reason="OOMKilled"), "OOMKilled", "more memory"),
        (ended(137), "Killed", "signal 9"),
        (ended(1, message="Traceback\nKeyError"), "Exited", "status 1: Traceback\nKeyError"),
        (ended(0), "Exited", "status 0"),
        (ended(78, message="still reaches tcp:10.0.0.1:443"), "PolicyNotEnforced", "tcp:10.0.0.1:443"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}, "Evicted", "low on disk"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "DeadlineExceeded", "DeadlineExceeded"),
        (
            {
                **ended(143),
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            },
            "EvictionByEvictionAPI",
            "EvictionByEvictionAPI",
        ),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {"name": "tools", "state": {"terminated": {"exitCode": 1, "message": "no space"}}}
                ],
            },
            "Exited",
            "no space",
        ),
    ],
)
def test_an_end_has_a_reason_and_a_message(status, reason, said):
    lost = state_of(pod(**status)).lost

    assert lost.reason == reason
    assert said in lost.message


def test_a_sidecar_does_not_hide_the_end():
    """Its container keeps the pod in phase Running."""
    assert state_of(pod(**{**ended(1), "phase": "Running"})).lost.reason == "Exited"


def test_what_is_being_deleted_or_gone_is_lost_unless_it_ended_before():
    running = {"phase": "Running", "podIP": "10.0.0.7", **container(running={})}

    assert state_of(pod(deleting=True, **running)).lost.reason == "Deleted"
    assert state_of(None).lost.reason == "Deleted"
    assert state_of(pod(deleting=True, **ended(137, reason="OOMKilled"))).lost.reason == "OOMKilled"


def test_what_is_said_inside_is_bounded():
    assert len(state_of(pod(**ended(1, message="x" * 4096))).lost.message) < 600
