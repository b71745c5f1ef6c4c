"""`spec.continueFrom` on this machine: a run begins with the history of a kept one, or is told why it cannot."""

import signal
from pathlib import Path
from typing import Any

from tests.local.command import Towline, agent_run, calls, says, script, template
from towline.events import runs
from towline.events.event import RunRef
from towline.local.store import opened


def successor(towline: Towline, **source: Any) -> Path:
    """A run that says what it remembers."""
    run = agent_run("next", prompt="And I?", continueFrom={"name": "first", **source})
    return towline.write("next.yaml", run, template(), script(*[says("{{prompt.1}} {{prompt.last}}")] * 9))


def test_a_run_goes_on_from_the_history_of_another(towline: Towline) -> None:
    path = towline.write("first.yaml", agent_run("first", prompt="I am Ada."), template(), script(says("Hello Ada.")))
    first = towline("run", path, "--json", "--keep")
    assert first.code == 0, first.err

    finished = towline("run", successor(towline), "--json", "--keep")

    assert finished.code == 0, finished.err
    assert finished.only("run.completed")["result"]["text"] == "I am Ada. And I?"
    taken = finished.only("context.compacted")
    assert (taken["reason"], taken["source"]["uid"]) == ("continued", first.events[0]["run"]["uid"])


def test_a_run_goes_on_from_one_whose_launcher_was_killed_in_the_middle_of_a_call(towline: Towline) -> None:
    steps = (calls("exec", command="sleep 600"), says("Never said."))
    path = towline.write("first.yaml", agent_run("first", prompt="I am Ada."), template(), script(*steps))
    running = towline.start("run", path, "--json", "--keep")
    running.until("sandbox.ready")
    running.signal(signal.SIGKILL)
    running.finish()

    finished = towline("run", successor(towline), "--json", "--keep")

    assert finished.code == 0, finished.err
    assert finished.only("run.completed")["result"]["text"] == "I am Ada. And I?"


def test_a_run_goes_on_from_the_event_that_is_named(towline: Towline) -> None:
    steps = [says("One."), says("Two.")]
    run = agent_run("first", prompt="I am Ada.", interactive=True)
    running = towline.start("run", towline.write("first.yaml", run, template(), script(*steps)), "--json", "--keep")
    seq = running.until("turn.waiting")["seq"]
    assert towline("prompt", "first", "I am Bob.").code == 0
    running.until("turn.waiting")
    assert towline("cancel", "first").code == 0
    running.finish()

    assert towline("run", successor(towline, seq=seq), "--json", "--keep").events[-1]["data"]["turns"] == 1
    whole = towline("run", successor(towline), "--json", "--keep")

    assert whole.only("run.completed")["result"]["text"] == "I am Ada. And I?"
    kept = [message for message in whole.only("context.compacted")["kept"] if "I am Bob." in str(message)]
    assert kept


async def test_an_event_that_is_no_longer_kept_is_refused_by_the_first_that_is(towline: Towline) -> None:
    path = towline.write("first.yaml", agent_run("first"), template(), script(says("One.")))
    first = towline("run", path, "--json", "--keep")
    run = first.events[0]["run"]
    async with opened(towline.store, verb="test") as (store, _):
        assert await runs.trim(store, RunRef(run["namespace"], run["uid"]), 5, above=0) == 4

    refused = towline("run", successor(towline, seq=4), "--keep")

    assert refused.code == 2
    what = "AgentRun/next: spec.continueFrom: seq is 4"
    assert refused.err == f"towline: {what}; expected at least 5, the first event of first that is kept\n"


def test_what_cannot_be_continued_is_named(towline: Towline) -> None:
    first = towline.write("first.yaml", agent_run("first"), template(), script(says("One.")))
    assert towline("run", first, "--json", "--keep").code == 0

    def refusal(name: str, seq: int | None, *options: str) -> str:
        source = {"name": name} if seq is None else {"name": name, "seq": seq}
        path = towline.write("next.yaml", agent_run("next", continueFrom=source), template(), script(says("Two.")))
        finished = towline("run", path, *options)
        assert finished.code == 2, finished.err
        return finished.err

    what = "towline: AgentRun/next: spec.continueFrom"
    assert refusal("first", None) == (
        f"{what} names a kept run, and the new one must be kept beside it: add --keep, or --store DIR\n"
    )
    assert refusal("frist", None, "--keep") == f"{what}: no run 'frist' here; did you mean 'first'?\n"
    assert f"{what}: seq is 500; first has " in refusal("first", 500, "--keep")
