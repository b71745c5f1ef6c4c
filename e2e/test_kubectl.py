"""What a person sees in kubectl: tables, descriptions and logs. docs/ shows the same, so a change here is one there."""

import json
import re

import pytest

from e2e.cluster.shell import wait_until
from e2e.installation import HARNESSES
from e2e.runs import API, Run, Team, call, say

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def finished(team: Team) -> Run:
    return team.run("hello", call("echo hi"), say("All done.")).wait()


def columns(table: str) -> tuple[list[str], list[str]]:
    """Headings and cells of the first row. Headings are in the places where their cells begin."""
    heading, row = table.splitlines()[:2]
    starts = [found.start() for found in re.finditer(r"\S+(?: \S+)*", heading)]
    ends = [*starts[1:], len(row)]
    return heading.split(), [row[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def test_the_table_tells_what_became_of_a_run(finished: Run) -> None:
    team = finished.team
    table = team.installation.kubectl("get", "arun", f"--namespace={team.namespace}")

    headings, cells = columns(table)

    assert headings == ["NAME", "TEMPLATE", "PHASE", "REASON", "TURNS", "SANDBOX", "AGE"]
    assert cells[:6] == ["hello", "hello", "Succeeded", "Completed", "1", "Deleted"]


def test_the_table_tells_what_a_run_waits_for(team: Team) -> None:
    kubectl = team.installation.kubectl
    waiting = Run(team, "waiting")
    spec = {"prompt": "go", "templateRef": {"name": "nowhere"}}
    kubectl.apply(
        {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": "waiting"}, "spec": spec}, namespace=team.namespace
    )
    paused = team.run("paused", say("never said"), tools=(), suspend=True)
    waiting.until("Accepted", "False")
    paused.until("Suspended", "True")

    rows = kubectl("get", "arun", f"--namespace={team.namespace}").splitlines()[1:]

    assert [row.split()[:4] for row in rows] == [
        ["paused", "paused", "Suspended", "UserRequested"],
        ["waiting", "nowhere", "Pending", "TemplateNotFound"],
    ]


def test_the_wide_table_adds_what_it_took(finished: Run) -> None:
    team = finished.team
    table = team.installation.kubectl("get", "arun", f"--namespace={team.namespace}", "--output=wide")

    headings, cells = columns(table)

    assert headings[7:] == ["TOKENS", "COST", "ATTEMPT", "APPROVALS", "POD"]
    assert int(cells[7]) > 0
    assert cells[9:] == ["0", "0", finished.status["harness"]["podName"]]


def test_all_kinds_are_found_by_their_category_and_short_names(finished: Run) -> None:
    kubectl, namespace = finished.installation.kubectl, f"--namespace={finished.team.namespace}"

    listed = kubectl("get", "towline", namespace, "--output=name").split()

    assert {name.partition("/")[0] for name in listed} >= {
        "agentrun.towline.dev",
        "agenttemplate.towline.dev",
        "modelprovider.towline.dev",
        "sandboxclass.towline.dev",
    }
    phase = ("--field-selector=status.phase=Succeeded", "--output=name")
    assert kubectl("get", "arun", namespace, *phase).split() == ["agentrun.towline.dev/hello"]


def test_describe_ends_with_the_story_of_the_run(finished: Run) -> None:
    line = ("describe", "arun", "hello", f"--namespace={finished.team.namespace}")
    told: list[str] = []

    def ended() -> bool:  # Events are posted beside the work, so the last one may come a moment after the end
        told[:] = finished.installation.kubectl(*line).partition("\nEvents:")
        return "Finished after" in told[2]

    wait_until("the end is told", ended, 10)
    status, _, events = told

    assert "Text:       All done." in status
    assert re.search(r"Type: +Finished\n", status)
    story = [line.split()[1] for line in events.splitlines() if "towline-operator" in line]
    # Those of the same second come in any order.
    assert sorted(story) == ["Accepted", "HarnessStarted", "SandboxReady", "SandboxRequested", "Succeeded"]
    assert "go" not in re.findall(r"\S+", events), "the prompt is not for everybody who may read events"


def test_watching_shows_each_phase_once(team: Team) -> None:
    """As `kubectl get arun -w` prints them."""
    group = "/apis/towline.dev/v1alpha1"

    with team.installation.kubectl.recorded(team.namespace, "agentruns", group) as runs:
        team.run("watched", call("echo hi"), say("done"))
        seen: list[str] = []

        def ended() -> bool:  # as the watch shows it, which may be behind what a read shows
            seen[:] = [run.get("status", {}).get("phase", "") for run in runs.objects()]
            return seen[-1:] == ["Succeeded"]

        wait_until("the end is shown", ended, 60)

    assert list(dict.fromkeys(seen)) == ["", "Pending", "Running", "Succeeded"]
    assert len(seen) <= 20, "each line of the table is a write of the operator's"


def test_the_harness_log_names_the_run_in_every_line_and_no_content(finished: Run) -> None:
    name = finished.status["harness"]["podName"]

    lines = finished.installation.kubectl("logs", name, f"--namespace={HARNESSES}").splitlines()

    told = [json.loads(line) for line in lines]
    assert [each["event"] for each in told] == ["harness started", "run finished"]
    assert {each["run"] for each in told} == {f"{finished.team.namespace}/{finished.uid}"}
    assert "All done." not in "".join(lines)
