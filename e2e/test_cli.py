"""The `towline` command on a cluster: finds runs by the API, and reads the event store through a port-forward."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.cluster.shell import Failed
from e2e.installation import Installation
from e2e.runs import API, Run, Team, Towline, call, say

pytestmark = pytest.mark.timeout(300)


def test_tail_shows_a_runs_events_byte_for_byte(team: Team, towline: Towline) -> None:
    made = team.run("hello", call("echo hi"), say("done")).wait()

    shown = towline("tail", "hello", "--json")

    assert shown.encode() == b"".join(event.line() + b"\n" for event in made.events())
    later = towline("tail", made.uid[:8], "--json", "--from=3")
    assert json.loads(later.splitlines()[0])["seq"] == 3


def test_tail_follows_a_run_to_its_end(team: Team, towline: Towline) -> None:
    team.run("slow", call("sleep 3; echo hi"), say("done")).until("HarnessReady", "True")

    lines = towline("tail", "slow", "--follow", "--json").splitlines()

    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert json.loads(lines[-1])["type"] == "run.completed"


def test_a_follower_waits_with_a_run_that_cannot_begin_yet(team: Team, towline: Towline) -> None:
    kubectl, run = team.installation.kubectl, Run(team, "early")
    spec = {"prompt": "go", "templateRef": {"name": "later"}}
    early = {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": "early"}, "spec": spec}
    kubectl.apply(early, namespace=team.namespace)
    run.until("Accepted", "False", "TemplateNotFound")
    with pytest.raises(Failed, match=r"run early has no events yet \(Pending, TemplateNotFound"):
        towline("tail", "early")

    with ThreadPoolExecutor(1) as beside:
        follower = beside.submit(towline, "tail", "early", "--follow", "--json")
        kubectl.apply(*team.kinds("later", say("done"), tools=()), namespace=team.namespace)
        run.wait()

    assert follower.result().encode() == b"".join(event.line() + b"\n" for event in run.events())


def test_the_store_may_be_given_by_its_url(installation: Installation, team: Team, towline: Towline) -> None:
    team.run("hello", say("done"), tools=()).wait()

    assert "run.completed" in towline("tail", "hello", "--redis-url", installation.store_url())


def test_ls_lists_a_namespace(team: Team, towline: Towline) -> None:
    for name in ("first", "second"):
        team.run(name, call("echo hi"), say("done")).wait()

    table = towline("ls").splitlines()
    first, second = (json.loads(line) for line in towline("ls", "--json").splitlines())

    assert table[0].split() == ["NAME", "UID", "PHASE", "TURNS", "CALLS", "TOKENS", "AGE"]
    assert [line.split()[0::2][:2] for line in table[1:]] == [["first", "Succeeded"], ["second", "Succeeded"]]
    assert (first["name"], first["phase"], first["tool_calls"]) == ("first", "Succeeded", 1)
    assert second["events"] > 0


def test_a_run_that_is_not_there_is_named_with_those_that_are(team: Team, towline: Towline) -> None:
    team.run("hello", say("done"), tools=()).wait()

    with pytest.raises(Failed, match=f"no run 'hullo' in namespace {team.namespace}; did you mean 'hello'"):
        towline("tail", "hullo")
