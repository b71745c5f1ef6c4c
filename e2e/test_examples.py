"""The happy path, as the README tells it: `kubectl apply`, `kubectl wait`, and everything in its place."""

import pytest

from e2e.cluster import places
from e2e.cluster.shell import wait_until
from e2e.installation import SANDBOXES, Installation
from e2e.kubectl import Object
from e2e.runs import Run, Team, assert_whole, call, say

EXAMPLES = places.REPOSITORY / "examples"
HELLO, FIX_A_BUG = EXAMPLES / "01-hello.yaml", EXAMPLES / "02-fix-a-bug.yaml"

pytestmark = pytest.mark.timeout(300)


def node_of(installation: Installation, pod: Object | None) -> str:
    """The zone of the node that a pod is on."""
    assert pod is not None
    node = installation.kubectl.json("get", "node", pod["spec"]["nodeName"])
    return str(node["metadata"]["labels"].get("towline.dev/zone"))


def test_the_first_example_is_answered_without_any_sandbox(team: Team) -> None:
    kubectl = team.installation.kubectl
    team.made.append(("modelprovider", "hello-script"))

    with kubectl.recorded(SANDBOXES) as sandboxes:
        kubectl("apply", f"--namespace={team.namespace}", f"--filename={HELLO}")
        run = Run(team, "hello").wait()
        seen = sandboxes.objects()

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.condition("SandboxReady")["reason"] == "NotRequested"
    assert "the tug goes on" in run.status["result"]["text"]
    assert node_of(team.installation, run.harness()) == "trusted"
    assert not [pod for pod in seen if run.owns(pod)]
    assert_whole(run.events())


def test_the_second_example_mends_the_bug_in_a_sandbox_on_the_other_node(team: Team) -> None:
    kubectl = team.installation.kubectl
    team.made.append(("modelprovider", "fix-a-bug-script"))

    with kubectl.recorded(SANDBOXES) as sandboxes:
        kubectl("apply", f"--namespace={team.namespace}", f"--filename={FIX_A_BUG}")
        run = Run(team, "fix-a-bug").wait()
        seen = [pod for pod in sandboxes.objects() if run.owns(pod)]

    assert run.outcome() == ("Succeeded", "Completed")
    assert {pod["metadata"]["name"] for pod in seen} == {run.status["sandbox"]["name"]}
    assert node_of(team.installation, seen[-1]) == "sandbox"
    assert node_of(team.installation, run.harness()) == "trusted"
    events = run.events()
    assert_whole(events)
    assert [result["outcome"] for result in run.results()] == ["ok"] * 6
    assert "FAILED (failures=2)" in run.said()[3]
    assert run.said()[5].rstrip().endswith("OK")
    assert (run.status["turns"], run.status["toolCalls"]) == (1, 6)


def test_a_failed_run_is_finished_too(team: Team) -> None:
    run = team.run("fails", call("true"), call("true"), say("never said"), limits={"maxToolCalls": 1})

    run.wait()

    phase, reason = run.outcome()
    assert phase == "Failed"
    assert reason == run.status["failure"]["reason"] == run.events()[-1].payload["reason"]
    assert run.condition("Succeeded")["status"] == "False"
    assert_whole(run.events())


def test_a_cancelled_run_is_finished_too(team: Team) -> None:
    run = team.run("sleeps", call("sleep 600"), say("never said"))
    run.until_event("agent.tool_use")
    run.until("SandboxReady", "True")

    run.patch(cancel=True, cancelReason="no longer needed")
    run.wait(seconds=30)

    assert run.outcome()[0] == "Cancelled"
    events = run.events()
    assert_whole(events)
    assert events[-1].payload["reason"] == "no longer needed"
    assert run.results()[0]["outcome"] == "cancelled"


def test_deleting_a_finished_run_leaves_no_object_of_it(team: Team) -> None:
    run = team.run("done", call("echo done"), say("done")).wait()
    uid = run.uid

    run.delete("--timeout=60s")

    run.until_nothing_is_left(uid)


def test_deleting_a_running_run_leaves_no_object_of_it(team: Team) -> None:
    run = team.run("busy", call("sleep 600"), say("never said"))
    run.until("SandboxReady", "True")
    uid = run.uid

    run.delete("--timeout=60s")

    run.until_nothing_is_left(uid)


def test_a_finished_run_goes_when_its_time_to_live_is_over(team: Team) -> None:
    run = team.run("short-lived", say("done"), tools=(), ttlSecondsAfterFinished=3).wait()

    wait_until("the run is gone", lambda: run.get() is None, 90)


def test_a_suspended_run_gives_its_pods_back_and_goes_on_when_it_is_resumed(team: Team) -> None:
    run = team.run("pausing", call("echo one"), call("sleep 5; echo two"), say("done"))
    run.until_event("agent.tool_result")

    run.patch(suspend=True)
    run.until("Suspended", "True")
    wait_until("the harness is gone", lambda: run.harness() is None, 60)
    run.patch(suspend=False)
    run.wait()

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.status["attempt"] == 0, "a pause is no crash"
    assert_whole(run.events())
