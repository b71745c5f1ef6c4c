"""What a person may get wrong, at the command: an exit code, a sentence on stderr, no traceback, nothing started."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.local.command import Finished, Towline, agent_run, says, script, template

SCRIPT = script(says("Done."))


def refused(towline: Towline, *words: str | Path, code: int = 2) -> str:
    """What stderr says of a command that is refused."""
    finished = towline(*words)
    assert_refused(finished, code)
    return finished.err


def assert_refused(finished: Finished, code: int) -> None:
    assert finished.code == code, finished.err
    assert finished.out == b""
    assert "Traceback" not in finished.err
    assert all(line.startswith("towline: ") for line in finished.err.splitlines())


def refused_run(towline: Towline, *documents: dict[str, Any], set_: str = "") -> str:
    words = ["--set", set_] if set_ else []
    return refused(towline, "run", towline.write("run.yaml", *documents), *words)


def test_wrong_yaml_is_refused_with_its_place(towline: Towline) -> None:
    path = towline.home / "run.yaml"
    path.write_text("kind: AgentRun\nspec: {prompt: [unclosed\n")
    assert f"{path}:3:1: not YAML" in refused(towline, "run", path)


def test_a_missing_file_is_named(towline: Towline) -> None:
    assert "nowhere.yaml: cannot be read" in refused(towline, "run", "nowhere.yaml")


def test_an_unknown_field_is_refused_with_what_was_meant(towline: Towline) -> None:
    said = refused_run(towline, agent_run(limit={"maxTurns": 3}), template(), SCRIPT)
    assert "spec.limit" in said
    assert "limits" in said


def test_a_prompt_that_is_too_long_is_refused(towline: Towline) -> None:
    said = refused_run(towline, agent_run(prompt="x" * 32_769), template(), SCRIPT)
    assert "spec.prompt" in said
    assert len(said) < 500, "the prompt is not repeated"


def test_an_unknown_template_is_refused_with_what_was_meant(towline: Towline) -> None:
    said = refused_run(towline, agent_run(templateRef={"name": "scriptet"}), template(), SCRIPT)
    assert 'AgentTemplate "scriptet" does not exist' in said
    assert 'did you mean "scripted"?' in said


def test_a_missing_key_is_refused_with_the_variable_to_set(towline: Towline) -> None:
    paid = script()
    paid["spec"] = {"api": "OpenAIChatCompletions", "secretRef": {"name": "k"}, "models": [{"name": "m"}]}
    assert "OPENAI_API_KEY; it is not set" in refused_run(towline, agent_run(), template(), paid)


def test_no_model_at_all_is_refused_with_what_to_set(towline: Towline) -> None:
    run = agent_run()
    del run["spec"]["templateRef"]
    assert "set ANTHROPIC_API_KEY, or OPENAI_API_KEY" in refused_run(towline, run)


@pytest.mark.parametrize("assignment", ["spec.limits.maxTurns=many", "prompt", "spec.nonsense=1"])
def test_a_wrong_assignment_is_refused(towline: Towline, assignment: str) -> None:
    assert "--set" in refused_run(towline, agent_run(), template(), SCRIPT, set_=assignment)


def test_every_fault_is_reported_at_once(towline: Towline) -> None:
    run = agent_run(promt="typo", limits={"maxTurns": 0}, sandbox={"policy": "Sometimes"})
    assert len(refused_run(towline, run, template(), SCRIPT).splitlines()) == 3


def test_a_hostile_manifest_cannot_drive_the_terminal_through_an_error(towline: Towline) -> None:
    said = refused_run(towline, agent_run(templateRef={"name": "\x1b]0;title\x07"}), template(), SCRIPT)
    assert "\x1b" not in said


def test_wrong_options_are_explained_by_the_usage(towline: Towline) -> None:
    for words in (["run"], ["sail"], ["tail", "x", "--from", "0"], []):
        finished = towline(*words)
        assert finished.code == 2
        assert "usage: towline" in finished.err
        assert "Traceback" not in finished.err


def test_a_store_that_cannot_be_made_is_a_fault_of_the_machine(towline: Towline) -> None:
    file = towline.home / "file"
    file.write_text("")
    path = towline.write("run.yaml", agent_run(), template(), SCRIPT)
    assert "cannot be made" in refused(towline, "run", path, "--store", file / "store", code=3)


def test_a_store_that_does_not_start_is_a_fault_of_the_machine_with_the_servers_own_words(towline: Towline) -> None:
    path = towline.write("run.yaml", agent_run(), template(), SCRIPT)
    assert towline("run", path, "--keep").code == 0
    for manifest in (towline.store / "valkey" / "appendonlydir").glob("*.manifest"):
        manifest.write_text("file nonsense\n")
    finished = towline("run", path, "--keep")
    assert finished.code == 3
    assert finished.out == b""
    assert finished.err.startswith("towline: the event store did not start")
    assert "manifest" in finished.err


def test_without_a_store_tail_is_refused_and_ls_has_nothing_to_list(towline: Towline) -> None:
    assert "no run 'x' here: none is at work, and none is kept in" in refused(towline, "tail", "x")
    listed = towline("ls", "--json")
    assert (listed.code, listed.out) == (0, b"")
    assert "no run is at work here, and none is kept in" in listed.err


def test_tail_beyond_the_end_shows_nothing(towline: Towline) -> None:
    path = towline.write("run.yaml", agent_run(), template(), SCRIPT)
    assert towline("run", path, "--keep").code == 0
    head = json.loads(towline("ls", "--json").out)["events"]
    for follow in ([], ["-f"]):
        resumed = towline("tail", "demo", "--from", str(head + 1), *follow)
        assert (resumed.code, resumed.out, resumed.err) == (0, b"", "")
        beyond = towline("tail", "demo", "--from", "1000", *follow)
        assert (beyond.code, beyond.out) == (0, b"")
        assert beyond.err == f"towline: the log has no event 999: what comes is shown from event {head + 1} on\n"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OPENAI_BASE_URL": "localhost:11434/v1", "TOWLINE_MODEL": "m", "OPENAI_API_KEY": "k"}, "OPENAI_BASE_URL is"),
        ({"ANTHROPIC_BASE_URL": "nonsense", "ANTHROPIC_API_KEY": "k"}, 'ANTHROPIC_BASE_URL is "nonsense"; expected an'),
        ({"TOWLINE_MODEL": "m" * 257, "ANTHROPIC_API_KEY": "k"}, "TOWLINE_MODEL is 257 characters long"),
    ],
)
def test_a_wrong_variable_is_named(towline: Towline, environment: dict[str, str], said: str) -> None:
    finished = towline("run", towline.write("run.yaml", agent_run(), template(), SCRIPT), **environment)
    assert_refused(finished, 2)
    assert said in finished.err


@pytest.mark.parametrize(
    "text",
    [
        b"a: [unclosed\n",
        b"only words\n",
        b"- a list\n",
        b"",
        b"\xff\xfe\x00",
        b"contexts: words\ncurrent-context: c\n",
        b"apiVersion: v1\nkind: Config\n",
    ],
)
def test_a_kubeconfig_that_is_none_is_named(towline: Towline, text: bytes) -> None:
    path = towline.home / "kubeconfig"
    path.write_bytes(text)
    for words in (("ls",), ("tail", "x"), ("cancel", "x", "-n", "team")):
        assert f"kubeconfig {path}: " in refused(towline, *words, "--kubeconfig", path)


def test_a_kubeconfig_that_cannot_be_read_is_named(towline: Towline) -> None:
    assert f"kubeconfig {towline.home}: " in refused(towline, "ls", "--kubeconfig", towline.home)


def test_a_prompt_that_stdin_does_not_have_is_refused(towline: Towline) -> None:
    assert_refused(no_text := towline("prompt", "x", "-", stdin=b"\xff\xfe"), 2)
    assert "the prompt on stdin is no text in utf-8" in no_text.err
    towline.wrapper = ("/bin/sh", "-c", 'exec "$@" <&-', "sh")
    assert "stdin, which is closed" in refused(towline, "prompt", "x", "-")
