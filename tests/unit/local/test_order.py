"""What `towline run` accepts, and how it says what it does not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from towline.errors import Invalid
from towline.local.order import Order, read_manifest, take_order
from towline.settings import LocalSettings

API = "towline.dev/v1alpha1"
SCRIPT = {
    "apiVersion": API,
    "kind": "ModelProvider",
    "metadata": {"name": "script"},
    "spec": {"api": "Scripted", "scripted": {"steps": [{"text": "Done."}]}},
}
TEMPLATE = {
    "apiVersion": API,
    "kind": "AgentTemplate",
    "metadata": {"name": "scripted"},
    "spec": {"model": {"provider": "script"}},
}


def a_run(name: str = "demo", **spec: Any) -> dict[str, Any]:
    whole = {"prompt": "Do it.", "templateRef": {"name": "scripted"}, **spec}
    return {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": name}, "spec": whole}


def order(
    folder: Path,
    *documents: dict[str, Any],
    assignments: tuple[str, ...] = (),
    name: str | None = None,
    settings: LocalSettings | None = None,
) -> Order:
    """The order for a file with `documents`."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return take_order(read_manifest([path], assignments, name), settings or LocalSettings(), uid="u-1")


def refusal(folder: Path, *documents: dict[str, Any], **more: Any) -> str:
    with pytest.raises(Invalid) as refused:
        order(folder, *documents, **more)
    return str(refused.value)


def test_a_run_becomes_a_snapshot_for_this_machine(tmp_path: Path) -> None:
    snapshot = order(tmp_path, a_run(), TEMPLATE, SCRIPT).snapshot
    assert (snapshot.name, snapshot.namespace, snapshot.uid, snapshot.prompt) == ("demo", "default", "u-1", "Do it.")
    assert snapshot.model.api == "Scripted"
    assert snapshot.sandbox.provider == "local"


def test_the_smallest_manifest_needs_a_key_only(tmp_path: Path) -> None:
    smallest = a_run()
    del smallest["spec"]["templateRef"]
    taken = order(tmp_path, smallest, settings=LocalSettings(anthropic_api_key="k"))
    assert taken.snapshot.model.api == "AnthropicMessages"
    assert taken.model_key == "k"
    assert "'k'" not in repr(taken)


def test_a_field_is_changed_on_the_command_line(tmp_path: Path) -> None:
    assignments = ("spec.prompt=Something else", "spec.limits.maxTurns=3")
    snapshot = order(tmp_path, a_run(), TEMPLATE, SCRIPT, assignments=assignments).snapshot
    assert (snapshot.prompt, snapshot.limits.max_turns) == ("Something else", 3)


def test_one_of_several_runs_is_picked_by_name(tmp_path: Path) -> None:
    documents = (a_run("one"), a_run("two"), TEMPLATE, SCRIPT)
    assert order(tmp_path, *documents, name="two").snapshot.name == "two"
    assert refusal(tmp_path, *documents) == "the files hold 2 AgentRuns; pick one with --name: one, two"
    assert "--name three: no AgentRun of that name; the files hold: one, two" in refusal(
        tmp_path, *documents, name="three"
    )


def test_files_without_a_run_are_refused(tmp_path: Path) -> None:
    assert "no AgentRun; expected one document of kind AgentRun" in refusal(tmp_path, TEMPLATE, SCRIPT)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"suspend": True}, "spec.suspend is true; `towline run` cannot hold a run back"),
        ({"cancel": True}, "spec.cancel is true; `towline run` cannot start a run that is cancelled"),
        ({"templateRef": {"name": "script"}}, 'AgentTemplate "script" does not exist'),
        ({"prompt": "x" * 40_000}, "spec.prompt"),
        ({"promt": "typo"}, "spec.promt"),
        ({"sandbox": {"className": "gpu"}}, 'SandboxClass "gpu" does not exist'),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(tmp_path, a_run(**change), TEMPLATE, SCRIPT)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    paid = {**SCRIPT, "spec": {"api": "AnthropicMessages", "secretRef": {"name": "s"}, "models": [{"name": "m"}]}}
    assert "ANTHROPIC_API_KEY; it is not set" in refusal(tmp_path, a_run(), TEMPLATE, paid)


def test_a_network_that_is_not_granted_is_said(tmp_path: Path) -> None:
    online = {
        "apiVersion": API,
        "kind": "SandboxClass",
        "metadata": {"name": "online"},
        "spec": {"provider": "pod", "network": {"preset": "Internet"}},
    }
    notes = order(tmp_path, a_run(sandbox={"className": "online"}), TEMPLATE, SCRIPT, online).notes
    assert notes == ("SandboxClass/online: a sandbox on this machine has no network, whatever network.preset says",)
