"""An interactive run in the foreground: it waits, is talked to from its own terminal and from another, and is ended."""

import json
from pathlib import Path

from tests.local.command import Towline, agent_run, says, script, template


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
