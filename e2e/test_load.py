"""Many runs at once, on a cluster as small as a laptop's: all end, each in its own way, and nothing is left of them."""

import secrets
from collections import Counter

import pytest

from e2e.cluster.shell import wait_until
from e2e.installation import HARNESSES, SANDBOXES
from e2e.kubectl import Object
from e2e.runs import API, Run, Team, assert_whole, call, say

pytestmark = pytest.mark.timeout(900)

ANSWERS = 100
MIXED = 50
TOGETHER = 10
"""So many harness pods are there at once: the answers come in waves."""


def agent_run(name: str, template: str, **spec: object) -> Object:
    asked = {"prompt": "go", "templateRef": {"name": template}} | spec
    return {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": name}, "spec": asked}


def phases(team: Team) -> Counter[str]:
    return Counter(
        run.get("status", {}).get("phase", "") for run in team.installation.kubectl.items("agentruns", team.namespace)
    )


def wait_for_all(team: Team, seconds: int) -> None:
    line = ("agentruns", "--all", f"--namespace={team.namespace}", "--for=condition=Finished", f"--timeout={seconds}s")
    team.installation.kubectl("wait", *line)


def nothing_left(team: Team) -> bool:
    kubectl, mine = team.installation.kubectl, f"towline.dev/run-namespace={team.namespace}"
    return not any(kubectl.items("pods", each, mine) for each in (HARNESSES, SANDBOXES))


def test_a_hundred_answers_need_no_sandbox(team: Team) -> None:
    kubectl = team.installation.kubectl
    kubectl.apply(*team.kinds("answer", say("hello")), namespace=team.namespace)

    with kubectl.recorded(SANDBOXES) as sandboxes:
        for wave in range(ANSWERS // TOGETHER):
            runs = [agent_run(f"answer-{wave}-{number}", "answer") for number in range(TOGETHER)]
            kubectl.apply(*runs, namespace=team.namespace)
            wait_for_all(team, 120)
        seen = sandboxes.objects()

    assert phases(team) == {"Succeeded": ANSWERS}
    assert not [pod for pod in seen if pod["metadata"]["labels"]["towline.dev/run-namespace"] == team.namespace]
    kubectl("delete", "agentruns", "--all", f"--namespace={team.namespace}", "--timeout=120s")
    wait_until("no pod is left", lambda: nothing_left(team), 120)


def test_fifty_mixed_runs_at_once_all_end_and_leave_nothing(team: Team) -> None:
    kubectl = team.installation.kubectl
    token = secrets.token_hex(4)
    kubectl.apply(
        *team.kinds("answers", say("hello")),
        *team.kinds("works", call(f"echo {token} >>ran; cat ran"), call("wc -l <ran"), say("done")),
        *team.kinds("fails", call("true"), say("never said")),
        *team.kinds("sleeps", call("sleep 600"), say("never said")),
        namespace=team.namespace,
    )
    runs = [
        *(agent_run(f"answers-{number}", "answers") for number in range(25)),
        *(agent_run(f"works-{number}", "works") for number in range(15)),
        *(agent_run(f"fails-{number}", "fails", limits={"maxInputTokens": 1}) for number in range(5)),
        *(agent_run(f"sleeps-{number}", "sleeps", activeDeadlineSeconds=60) for number in range(5)),
    ]
    assert len(runs) == MIXED

    kubectl.apply(*runs, namespace=team.namespace)
    wait_for_all(team, 600)

    assert phases(team) == {"Succeeded": 40, "Failed": 10}
    for number in range(15):
        run = Run(team, f"works-{number}")
        assert run.said() == [f"{token}\n", "1\n"]
        assert_whole(run.events())
    kubectl("delete", "agentruns", "--all", f"--namespace={team.namespace}", "--timeout=120s")
    wait_until("no pod is left", lambda: nothing_left(team), 120)
