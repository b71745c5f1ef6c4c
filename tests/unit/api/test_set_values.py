"""`--set`: small changes to the run of a file, from the command line."""

from pathlib import Path
from typing import Any

import pytest

from towline.api.documents import load, set_values
from towline.errors import Invalid

RUN = "apiVersion: towline.dev/v1alpha1\nkind: AgentRun\nmetadata: {name: hello}\nspec: {prompt: a, backoffLimit: 2}\n"


@pytest.mark.parametrize(
    ("assignment", "spec"),
    [
        ("spec.prompt=Say hello, please = now", {"prompt": "Say hello, please = now"}),
        ("spec.prompt=3", {"prompt": "3"}),
        ("spec.prompt=", {"prompt": ""}),
        ("spec.limits.maxTurns=3", {"limits": {"maxTurns": 3}}),
        ("spec.suspend=true", {"suspend": True}),
        ("spec.params.version=1.10", {"params": {"version": "1.10"}}),
        ("spec.sandbox.policy=Never", {"sandbox": {"policy": "Never"}}),
        ("spec.limits={maxTurns: 3}", {"limits": {"maxTurns": 3}}),
        ("spec.limits=", {"limits": None}),
        ("spec.unknown=3", {"unknown": "3"}),
    ],
)
def test_a_value_is_text_where_the_field_is_text_and_yaml_elsewhere(assignment: str, spec: dict[str, Any]) -> None:
    before: dict[str, Any] = {"spec": {}}
    assert set_values(before, [assignment]) == {"spec": spec}
    assert before == {"spec": {}}


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("spec.prompt", "--set spec.prompt: expected PATH=VALUE, such as spec.limits.maxTurns=3"),
        ("spec=3", "--set spec: expected PATH=VALUE, such as spec.limits.maxTurns=3"),
        ("prompt=3", "--set prompt: expected PATH=VALUE, such as spec.limits.maxTurns=3"),
        ("spec..prompt=3", "--set spec..prompt: expected PATH=VALUE, such as spec.limits.maxTurns=3"),
        ("status.phase=Running", "--set status.phase: expected PATH=VALUE, such as spec.limits.maxTurns=3"),
        ("spec.limits=[", "--set spec.limits: the value is not YAML"),
        (
            "spec.backoffLimit.x=1",
            "--set spec.backoffLimit.x: backoffLimit is 2, and only fields of a mapping can be set",
        ),
        ("spec.limits.maxTurns=0", "--set spec.limits.maxTurns: spec.limits.maxTurns is 0; expected at least 1"),
        ("spec.limits.maxTurns=x", '--set spec.limits.maxTurns: spec.limits.maxTurns is "x"; expected a whole number'),
        ("spec.promt=x", '--set spec.promt: spec.promt is no field of spec; did you mean "prompt"?'),
    ],
)
def test_a_wrong_assignment_is_named_by_itself_and_not_by_a_line(
    tmp_path: Path, assignment: str, sentence: str
) -> None:
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    with pytest.raises(Invalid) as refused:
        load([tmp_path / "run.yaml"], [assignment])
    assert refused.value.problems == (sentence,)


def test_it_changes_the_run_and_can_give_what_the_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.replace("prompt: a, ", ""), encoding="utf-8")
    (run,) = load([tmp_path / "run.yaml"], ["spec.prompt=b", "spec.limits.maxTurns=1", "metadata.name=other"]).runs
    assert (run.spec.prompt, run.spec.limits.max_turns, run.metadata.name) == ("b", 1, "other")


@pytest.mark.parametrize(("runs", "count"), [(0, "none"), (2, "2")])
def test_it_needs_exactly_one_run(tmp_path: Path, runs: int, count: str) -> None:
    classes = "apiVersion: towline.dev/v1alpha1\nkind: SandboxClass\nmetadata: {name: a}\n"
    (tmp_path / "run.yaml").write_text("---\n".join([classes] + [RUN] * runs), encoding="utf-8")
    with pytest.raises(Invalid) as refused:
        load([tmp_path / "run.yaml"], ["spec.prompt=b"])
    assert refused.value.problems == (f"--set changes one AgentRun, and the files hold {count}",)


def test_the_run_that_it_changes_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN + "---\n" + RUN.replace("hello", "other"), encoding="utf-8")
    found = load([tmp_path / "run.yaml"], ["spec.prompt=b"], run="other")
    assert [run.spec.prompt for run in found.runs] == ["a", "b"]
    with pytest.raises(Invalid, match="--set changes the AgentRun third, and the files hold none"):
        load([tmp_path / "run.yaml"], ["spec.prompt=b"], run="third")
