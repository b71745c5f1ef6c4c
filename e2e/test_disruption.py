"""What a cluster does to pods, and to itself, without asking: evictions, no memory, taken names, no API server.

None of it is the fault of a run, so none of it ends one; and what counts as a crash is only what a harness did itself.
"""

import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from e2e import probe
from e2e.cluster import controlplane, hog
from e2e.cluster.layout import Cluster
from e2e.installation import HARNESSES, SANDBOXES, Installation
from e2e.kubectl import Object
from e2e.recovery import until_back
from e2e.runs import Run, Team, assert_whole, call, say
from towline.clock import utc_now
from towline.naming import harness_pod_name, sandbox_name

pytestmark = pytest.mark.timeout(300)

ONCE = "echo run >>ran; sleep 4; wc -l <ran"
"""Tells how often it ran."""
OUTAGE_SECONDS = 60


def evict(run: Run, pod: Object) -> None:
    """Ask the API for the eviction of a pod, as a drain of its node does."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    run.installation.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(asked))


# -- evictions ---------------------------------------------------------------------------------------------------------


def test_a_sandbox_that_fills_its_disk_is_evicted_and_the_model_is_told(team: Team) -> None:
    small = team.sandbox_class(provider="pod", resources={"disk": "32Mi"})
    run = team.run(
        "hoarder",
        call("dd if=/dev/zero of=big bs=1M count=80; sleep 600"),
        call("ls big"),
        say("done"),
        sandbox={"className": small},
    ).wait(seconds=150)

    assert run.outcome() == ("Succeeded", "Completed")
    first, second = run.said()
    assert run.results()[0]["outcome"] == "unknown"
    assert "Evicted" in first
    assert "No such file" in second, "another sandbox, with an empty workspace"
    assert [event.payload["reason"] for event in run.events() if event.type == "sandbox.lost"] == ["Evicted"]
    assert_whole(run.events())


def test_a_sandbox_that_is_drained_is_replaced(team: Team) -> None:
    run = team.run("drained", call("sleep 600"), call("echo anew"), say("done"))
    run.until("SandboxReady", "True")
    run.until_event("agent.tool_use")
    sandbox = run.sandbox()
    assert sandbox is not None

    evict(run, sandbox)
    run.wait()

    assert run.outcome() == ("Succeeded", "Completed")
    assert [result["outcome"] for result in run.results()] == ["unknown", "ok"]
    assert run.status["sandbox"]["name"].endswith("-2")
    assert_whole(run.events())


def test_a_harness_that_is_drained_is_replaced_and_the_call_runs_once(team: Team) -> None:
    run = team.run("drained", call(ONCE), say("done"))
    run.until("SandboxReady", "True")
    run.until_event("agent.tool_use")
    harness = run.harness()
    assert harness is not None

    evict(run, harness)
    run.wait()

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.said() == ["1\n"]
    assert (run.status["epoch"], run.status["attempt"]) == (2, 0), "a drain is no crash"
    assert_whole(run.events())


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_harness_without_memory_in_its_first_turn_is_replaced_and_the_call_runs_once(
    team: Team, cluster: Cluster
) -> None:
    run = team.run("starved", call(ONCE), say("done"))
    run.until("SandboxReady", "True")
    run.until_event("agent.tool_use")
    harness = run.harness()
    assert harness is not None

    hog.out_of_memory(cluster, harness)
    run.wait()

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.said() == ["1\n"]
    assert (run.status["epoch"], run.status["attempt"]) == (2, 1), "that one counts"
    assert [each["reason"] for each in run.status["attempts"]] == ["OOMKilled"]
    lost = [event.payload for event in run.events() if event.type == "harness.lost"]
    assert [(each["reason"], each["signal"]) for each in lost] == [("OOMKilled", 9)]
    assert_whole(run.events())


# -- names -------------------------------------------------------------------------------------------------------------


def foreign_pod(team: Team, namespace: str, name: str) -> Object:
    """Somebody else's, by accident or not: it has our name, and none of our labels."""
    pod = probe.probing_pod("sandbox", [], {})
    pod["metadata"]["name"] = name
    kubectl = team.installation.kubectl
    kubectl.apply(pod, namespace=namespace)
    found = kubectl.find("pod", namespace, name)
    assert found is not None
    return found


def still_there(team: Team, pod: Object) -> bool:
    metadata = pod["metadata"]
    found = team.installation.kubectl.find("pod", metadata["namespace"], metadata["name"])
    return found is not None and found["metadata"]["uid"] == metadata["uid"]


def remove(team: Team, pod: Object) -> None:
    metadata = pod["metadata"]
    team.installation.kubectl.delete("pod", metadata["namespace"], metadata["name"], "--grace-period=0", "--force")


def test_a_strangers_pod_with_the_name_of_our_harness_is_left_alone_and_waited_out(team: Team) -> None:
    run = team.run("named", say("done"), tools=(), suspend=True)
    run.until("Suspended", "True")
    stranger = foreign_pod(team, HARNESSES, harness_pod_name(run.uid, 1))
    try:
        run.patch(suspend=False)
        told = run.until("HarnessReady", "False", "NameTaken")
        assert stranger["metadata"]["name"] in told["message"]
        assert still_there(team, stranger)
    finally:
        remove(team, stranger)

    run.wait(seconds=120)

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.status["epoch"] == 1


def test_a_strangers_pod_with_the_name_of_our_sandbox_is_left_alone_and_the_next_one_has_another(team: Team) -> None:
    quick = team.sandbox_class(provider="pod", startTimeoutSeconds=5)
    run = team.run("named", call("true"), call("echo ours"), say("done"), sandbox={"className": quick}, suspend=True)
    run.until("Suspended", "True")
    stranger = foreign_pod(team, SANDBOXES, sandbox_name(run.uid, 1))
    try:
        run.patch(suspend=False)
        run.wait()
        assert still_there(team, stranger)
    finally:
        remove(team, stranger)

    first, second = run.results()
    assert (first["outcome"], second["outcome"]) == ("error", "ok")
    assert "NameTaken" in run.said()[0]
    assert run.said()[1].splitlines()[-1] == "ours"
    assert run.status["sandbox"]["name"] == sandbox_name(run.uid, 2)


# -- the API server ----------------------------------------------------------------------------------------------------


@pytest.fixture
def back_again(cluster: Cluster, installation: Installation) -> Iterator[Cluster]:
    """However the test ends, the API server runs after it, and whoever watches it works again."""
    yield cluster
    controlplane.start_api_server(cluster)
    until_back(cluster, installation)


@pytest.mark.timeout(600)
def test_without_an_api_server_a_run_goes_on_and_ends_and_the_status_catches_up(
    team: Team, back_again: Cluster
) -> None:
    short = team.run("short", call("sleep 20; echo one"), call("echo two"), say("done"))
    long = team.run("long", *[call(f"sleep 10; echo {number}") for number in range(8)], say("done"))
    for run in (short, long):
        run.until("SandboxReady", "True")
        run.until_event("agent.tool_use")

    controlplane.stop_api_server(back_again)
    time.sleep(OUTAGE_SECONDS)  # noqa: TID251 - a minute without it is the fault itself
    back = utc_now()
    controlplane.start_api_server(back_again)
    team.installation.tunnel.close()  # it led through the API server

    for run in (short, long):
        run.wait(seconds=120)
        assert run.outcome() == ("Succeeded", "Completed")
        assert (run.status["epoch"], run.status["attempt"]) == (1, 0), "nobody replaced what worked"
        assert_whole(run.events())
    assert short.said() == ["one\n", "two\n"]
    assert long.said() == [f"{number}\n" for number in range(8)]
    assert datetime.fromisoformat(short.events()[-1].time) < back, "it ended while nobody could look"
