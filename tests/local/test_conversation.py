"""An interactive run in the foreground: it waits, is talked to from its own terminal and from another, and is ended."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.local.command import Running, Towline, agent_run, calls, eventually, says, script, template
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.local.store import opened

EXAMPLE = Path(__file__).parents[2] / "examples" / "03-conversation.yaml"


def chat(towline: Towline, *answers: str, **spec: object) -> Path:
    run = agent_run("chat", prompt="Hello, I am Ada.", interactive=True, **spec)
    return towline.write("chat.yaml", run, template(tools=[]), script(*map(says, answers)))


def test_a_person_talks_to_a_run_at_its_terminal_and_ends_it_with_ctrl_c(towline: Towline) -> None:
    terminal = towline.at_terminal("run", chat(towline, "Hello Ada.", "You are Ada."))
    terminal.until('Hello Ada.\nwaiting for a prompt: type it here, or: towline prompt chat "…"\n› ')

    terminal.type("Who am I?\n")

    assert terminal.until("› ") == (
        'Who am I?\nYou are Ada.\nwaiting for a prompt: type it here, or: towline prompt chat "…"\n› '
    )
    terminal.type("\x03")
    code, rest = terminal.finish()
    assert code == 130
    assert "✗ cancelled: Interrupted" in rest


def test_a_closed_keyboard_ends_no_run(towline: Towline) -> None:
    terminal = towline.at_terminal("run", chat(towline, "Hello Ada.", "You are Ada."))
    terminal.until("› ")

    terminal.type("\x04")
    terminal.until("no more prompts from this terminal; Ctrl-C ends the run\n")

    assert towline("prompt", "chat", "Who am I?").code == 0
    terminal.until("› Who am I?\nYou are Ada.\nwaiting for a prompt")
    assert towline("cancel", "chat").code == 0
    assert terminal.finish()[0] == 1


def test_elsewhere_a_run_that_waits_tells_the_exact_next_command(towline: Towline) -> None:
    store = towline.home / "my store"
    running = towline.start("run", chat(towline, "Hello Ada.", "You are Ada."), "--store", store)
    assert running.process.stdout is not None
    lines = iter(running.process.stdout)
    hint = next(line for line in lines if b"waiting for a prompt: " in line).decode()
    command = hint.partition("waiting for a prompt: ")[2].strip()
    assert command == f"towline prompt --store '{store}' chat \"…\""
    assert json.loads(towline("ls", "--json", "--store", store).out)["phase"] == "InputRequired"

    assert towline("prompt", "--store", store, "chat", "Who am I?").code == 0

    assert any(b"You are Ada." in line for line in lines)
    assert towline("cancel", "--store", store, "chat", "--reason", "Enough.").code == 0
    finished = running.finish()
    assert (finished.code, b"run.cancelled" in finished.out) == (1, True)


# -- the example -----------------------------------------------------------------------------------------------------


def example(towline: Towline, *options: str) -> Running:
    """The example, falling asleep after a second, when it waits for the first time."""
    quick = "spec.idlePolicy.suspendAfterSeconds=1"
    running = towline.start("run", EXAMPLE, "--json", "--set", quick, *options)
    running.until("turn.waiting")
    return running


def harnesses(towline: Towline) -> list[str]:
    return [line for line in towline.descendants().values() if "towline.harness" in line]


def until_asleep(towline: Towline) -> None:
    eventually(lambda: not harnesses(towline))
    eventually(lambda: [run for run in listed(towline) if run["asleep"]])


def listed(towline: Towline) -> list[dict[str, Any]]:
    return [json.loads(line) for line in towline("ls", "--json").out.splitlines()]


def answer(running: Running) -> str:
    """The next answer, when the run waits again."""
    seen = len(running.seen)
    running.until("turn.waiting")
    texts = [json.loads(line)["data"]["content"] for line in running.seen[seen:] if b'"agent.message"' in line]
    return "".join(block["text"] for block in texts[-1] if block["type"] == "text")


def end(towline: Towline, running: Running) -> list[dict[str, Any]]:
    assert towline("cancel", "conversation").code == 0
    finished = running.finish()
    assert finished.types[-1] == "run.cancelled"
    assert [event["seq"] for event in finished.events] == list(range(1, len(finished.events) + 1))
    return finished.events


def test_a_run_sleeps_without_a_process_is_woken_by_a_prompt_and_remembers(towline: Towline) -> None:
    running = example(towline)
    until_asleep(towline)
    assert [run["phase"] for run in listed(towline)] == ["InputRequired"]
    assert b"InputRequired,Asleep" in towline("ls").out

    assert towline("prompt", "conversation", "What is my name?").code == 0

    assert answer(running) == 'You are Ada. You have just asked me "What is my name?".'
    until_asleep(towline)
    events = end(towline, running)
    assert not [event for event in events if event["type"] == "harness.lost"], "to sleep is no loss"
    assert [event["epoch"] for event in events if event["type"] == "harness.started"] == [1, 2]


async def test_prompts_given_at_once_are_answered_in_order_each_in_a_turn_of_its_own(towline: Towline) -> None:
    running = await asyncio.to_thread(example, towline)

    given = await asyncio.gather(
        *(asyncio.to_thread(towline, "prompt", "conversation", f"prompt of {who}") for who in ("a", "b"))
    )

    assert sorted(each.out for each in given) == [
        b"prompt 1 is in the inbox of conversation\n",
        b"prompt 2 is in the inbox of conversation\n",
    ]
    first, second = (
        (b"prompt of a", b"prompt of b") if b"prompt 1" in given[0].out else (b"prompt of b", b"prompt of a")
    )
    await asyncio.to_thread(running.until, "turn.completed", 2)
    events = await asyncio.to_thread(end, towline, running)
    taken = [(event["turn"], event["data"]) for event in events if event["type"] == "user.message"]
    assert [(turn, data["content"], data["prompt_id"]) for turn, data in taken] == [
        (1, "Ada", "0-0"),
        (2, first.decode(), "1-0"),
        (3, second.decode(), "2-0"),
    ]
    turns = [event["turn"] for event in events if event["turn"] is not None]
    assert turns == sorted(turns), "no turn begins before the one before has ended"


def at_the_long_answer(towline: Towline, *options: str) -> Running:
    running = example(towline, *options)
    for prompt in ("One.", "Two."):
        assert towline("prompt", "conversation", prompt).code == 0
        answer(running)
    assert towline("prompt", "conversation", "Talk to me.").code == 0
    running.until("agent.message_start")
    return running


def test_an_interrupt_breaks_a_streaming_answer_off(towline: Towline) -> None:
    running = at_the_long_answer(towline)

    with towline.held():
        assert towline("prompt", "conversation", "Stop!", "--interrupt").code == 0

    assert answer(running) == 'I heard you, Ada. You said "Stop!".'
    events = end(towline, running)
    (aborted,) = [event["data"] for event in events if event["type"] == "agent.message_aborted"]
    assert aborted["reason"] == "Interrupted"
    reasons = [event["data"]["stop_reason"] for event in events if event["type"] == "turn.completed"]
    assert reasons[-2:] == ["interrupted", "end_turn"]


def test_a_steer_is_taken_up_in_the_running_turn(towline: Towline) -> None:
    running = at_the_long_answer(towline)

    with towline.held():
        assert towline("prompt", "conversation", "By the way.", "--steer").code == 0

    assert answer(running) == 'I heard you, Ada. You said "By the way.".'
    events = end(towline, running)
    taken = [(event["turn"], event["data"]) for event in events if event["type"] == "user.message"]
    assert [(turn, data["content"]) for turn, data in taken[-2:]] == [(4, "Talk to me."), (4, "By the way.")]
    assert len([event for event in events if event["type"] == "turn.completed"]) == 4


def test_two_followers_see_a_conversation_live_and_without_a_gap(towline: Towline) -> None:
    running = example(towline)
    followers = [towline.start("tail", "conversation", "-f", "--json") for _ in range(2)]
    for follower in followers:
        follower.until("turn.waiting")
    until_asleep(towline)

    assert towline("prompt", "conversation", "Do they see it?").code == 0

    for follower in followers:
        assert b"Do they see it?" in (follower.until("user.message"), follower.seen)[1][-1]
        follower.until("turn.waiting")
    assert towline("cancel", "conversation").code == 0
    finished = running.finish()
    assert [follower.finish().out for follower in followers] == [finished.out] * 2


@pytest.mark.parametrize(("retain", "visits"), [("Suspend", 2), ("Delete", 1)])
def test_the_workspace_of_a_run_that_slept_is_kept_or_reset_and_the_model_is_told(
    towline: Towline, retain: str, visits: int
) -> None:
    visit = calls("exec", command="echo x >> visits; wc -l < visits")
    run = agent_run("conversation", interactive=True, idlePolicy={"suspendAfterSeconds": 1}, sandbox={"retain": retain})
    steps = [visit, says("Written."), visit, says("Again.")]
    running = towline.start("run", towline.write("r.yaml", run, template(), script(*steps)), "--json")
    running.until("turn.waiting")
    until_asleep(towline)
    assert not [line for line in towline.descendants().values() if "bwrap" in line]

    assert towline("prompt", "conversation", "Once more.").code == 0

    running.until("agent.tool_result")
    result = json.loads(running.seen[-1])["data"]["content"][0]["text"]
    assert str(visits) in result
    assert ("workspace" in result) is (retain == "Delete"), "the model is told of a reset"
    running.until("turn.waiting")
    kinds = [event["type"] for event in end(towline, running)]
    assert kinds.count("sandbox.ready") == 2
    assert ("sandbox.suspended" in kinds, "sandbox.deleted" in kinds) == (retain == "Suspend", retain == "Delete")


def test_a_run_that_nobody_prompts_is_woken_for_its_end_and_succeeds(towline: Towline) -> None:
    idle = {"suspendAfterSeconds": 1, "finishAfterSeconds": 8}
    running = towline.start("run", chat(towline, "Hello Ada.", idlePolicy=idle), "--json")
    running.until("turn.waiting")
    eventually(lambda: not harnesses(towline))

    finished = running.finish()

    assert finished.code == 0, finished.err
    assert finished.only("run.completed")["result"]["text"] == "Hello Ada."
    assert len(finished.each("harness.started")) == 2


def test_one_waits_for_the_answer_to_a_prompt(towline: Towline) -> None:
    running = example(towline)
    until_asleep(towline)

    asked = towline("prompt", "conversation", "What is my name?", "--wait", "--key", "k", "--timeout", "60")

    assert (asked.code, asked.out, asked.err) == (
        0,
        b'You are Ada. You have just asked me "What is my name?".\n',
        "",
    )
    again = towline("prompt", "conversation", "What is my name?", "--wait", "--key", "k")
    assert again.out == asked.out
    end(towline, running)


async def test_an_answer_that_does_not_come_whole_or_in_time_is_said(towline: Towline) -> None:
    running = await asyncio.to_thread(at_the_long_answer, towline, "--keep")
    with towline.held():
        late = await asyncio.to_thread(towline, "prompt", "conversation", "Later.", "--wait", "--timeout", "0.5")
        assert (late.code, late.out) == (124, b"")
        assert late.err == "towline: no answer within 0.5 s; the prompt stays in the inbox\n"
        waiting = towline.start("prompt", "conversation", "Never.", "--wait")
        uid = json.loads(running.seen[0])["run"]["uid"]
        async with opened(towline.store, verb="test") as (store, _):
            while (await EventLog(store, RunRef("default", uid)).state()).inbox_head < 5:
                await asyncio.sleep(0.02)

    await asyncio.to_thread(end, towline, running)

    never = await asyncio.to_thread(waiting.finish)
    assert (never.code, never.out) == (1, b"")
    assert never.err == f"towline: the run conversation ({uid}) has ended: run.cancelled\n"
