"""A sandbox that dies under a command, in every way but eviction (test_disruption.py), and one that only hangs.

It is an ordinary event: the call that was open gets its one result, the next one a new sandbox, and the run goes on.
"""

import signal
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster import containers, hog, network
from e2e.cluster.layout import Cluster
from e2e.cluster.shell import wait_until
from e2e.installation import SANDBOXES, Installation
from e2e.kubectl import Object
from e2e.recovery import until_back
from e2e.runs import Run, Team, Towline, assert_whole, call, say

pytestmark = pytest.mark.timeout(300)

Break = Callable[[Object], None]


def by_hand(run: Run, pod: Object) -> None:
    at_once = ("--grace-period=0", "--force", "--wait=false")
    run.installation.kubectl.delete("pod", SANDBOXES, pod["metadata"]["name"], *at_once)


def in_a_command(run: Run, cluster: Cluster, calls: int) -> Object:
    """The run's first sandbox, once its call of that number has begun a process."""
    run.until_event("agent.tool_use", calls)
    run.until("SandboxReady", "True")
    pod = run.sandbox()
    assert pod is not None
    procs = containers.procs(cluster, pod)
    wait_until("the command runs", lambda: len(procs.read_text().split()) > 1, 30)
    return pod


def losses(run: Run) -> list[str]:
    return [event.payload["reason"] for event in run.events() if event.type == "sandbox.lost"]


@pytest.mark.parametrize("cause", ["Deleted", "Killed", "OOMKilled"])
def test_a_sandbox_that_is_lost_in_a_call_is_told_of_and_the_next_call_gets_a_new_one(
    team: Team, cluster: Cluster, cause: str
) -> None:
    run = team.run("bereft", call("sleep 600"), call("echo anew"), say("done"))
    pod = in_a_command(run, cluster, 1)

    match cause:
        case "Deleted":
            by_hand(run, pod)
        case "Killed":
            containers.signal_first(cluster, pod, signal.SIGKILL)
        case "OOMKilled":
            hog.out_of_memory(cluster, pod)
    run.wait()

    assert run.outcome() == ("Succeeded", "Completed")
    assert [each["outcome"] for each in run.results()] == ["unknown", "ok"]
    first, second = run.said()
    assert f"({cause})" in first
    assert "new sandbox" in second
    assert second.splitlines()[-1] == "anew"
    assert losses(run) == [cause]
    assert run.status["sandbox"]["name"].endswith("-2")
    assert_whole(run.events())


def test_a_command_that_takes_all_memory_ends_and_the_run_goes_on(team: Team) -> None:
    """The kernel ends the command alone, or with cgroup v2 all that is in the sandbox."""
    small = team.sandbox_class(provider="pod", resources={"memory": "64Mi"})
    run = team.run(
        "glutton",
        call("python3 -c 'b = bytearray(1 << 30)'; echo ended with $?"),
        call("echo alive"),
        say("done"),
        sandbox={"className": small},
    ).wait()

    assert run.outcome() == ("Succeeded", "Completed")
    first, second = run.said()
    assert losses(run) in ([], ["OOMKilled"])
    assert losses(run) or "ended with 137" in first
    assert second.splitlines()[-1] == "alive"
    assert ("new sandbox" in second) == bool(losses(run))


def test_a_tool_server_that_hangs_is_given_up_after_two_calls_and_its_pod_goes(team: Team, cluster: Cluster) -> None:
    steps = (call("sleep 60", timeout_seconds=5), call("echo lost"), call("echo anew"), say("done"))
    run = team.run("hung", *steps)
    pod = in_a_command(run, cluster, 1)

    containers.signal_first(cluster, pod, signal.SIGSTOP)
    run.wait(seconds=180)

    assert run.outcome() == ("Succeeded", "Completed")
    assert [each["outcome"] for each in run.results()] == ["unknown", "error", "ok"]
    first, second, third = run.said()
    assert "no answer within 35 s (NoAnswer)" in first
    assert "not executed" in second
    assert third.splitlines()[-1] == "anew"
    assert losses(run) == ["Unresponsive"]
    team.installation.kubectl.until("is gone", "pod", SANDBOXES, pod["metadata"]["name"], lambda found: found is None)
    assert_whole(run.events())


@pytest.fixture
def plugged_in(cluster: Cluster, installation: Installation) -> Iterator[Callable[[], None]]:
    """Ends the loss of the sandbox node, at the latest after the test."""

    def back() -> None:
        network.plug(cluster.node("sandbox"))
        until_back(cluster, installation)

    yield back
    back()


@pytest.mark.timeout(600)
def test_a_node_that_is_cut_off_takes_its_sandbox_along_and_the_run_goes_on(
    team: Team, cluster: Cluster, plugged_in: Callable[[], None], towline: Towline
) -> None:
    steps = (call("sleep 60", timeout_seconds=5), call("echo lost"), say("in vain"), call("echo anew"), say("done"))
    run = team.run("cut-off", *steps, interactive=True)
    in_a_command(run, cluster, 1)

    network.unplug(cluster.node("sandbox"))
    run.until("InputRequired", "True", seconds=120)
    plugged_in()
    towline("prompt", "cut-off", "And now?", "--wait", "--timeout=120")

    assert [each["outcome"] for each in run.results()] == ["unknown", "error", "ok"]
    assert run.said()[-1].splitlines()[-1] == "anew"
    assert losses(run) == ["Unresponsive"]
    assert run.status["attempt"] == 0
    towline("cancel", "cut-off")
    run.wait()
    assert_whole(run.events())
