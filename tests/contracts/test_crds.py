"""The committed CRDs are the models', and say what the design promises about updates."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from towline.api.agentrun import MUTABLE
from towline.api.crds import KINDS, Kind, definition, file_name, render

FOLDER = Path(__file__).parents[2] / "crds"


def version(kind: str) -> dict[str, Any]:
    (found,) = (definition(each) for each in KINDS if each.name == kind)
    only: dict[str, Any] = found["spec"]["versions"][0]
    return only


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_committed_file_is_what_make_crds_writes(kind: Kind) -> None:
    assert (FOLDER / file_name(kind)).read_text(encoding="utf-8") == render(kind)
    assert yaml.safe_load(render(kind)) == definition(kind)


def test_no_file_is_left_of_a_kind_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_name(kind) for kind in KINDS}


def test_the_kinds_have_their_names_and_scopes() -> None:
    found = {kind.plural: (kind.scope, kind.short_names) for kind in KINDS}
    assert found == {
        "agentruns": ("Namespaced", ("arun",)),
        "agenttemplates": ("Namespaced", ()),
        "modelproviders": ("Cluster", ()),
        "sandboxclasses": ("Cluster", ()),
    }
    assert all(definition(kind)["spec"]["names"]["categories"] == ["towline"] for kind in KINDS)


def test_kubectl_shows_the_columns_of_the_design() -> None:
    columns = version("AgentRun")["additionalPrinterColumns"]
    assert [column["name"] for column in columns if "priority" not in column] == [
        *("Template", "Phase", "Reason", "Turns", "Sandbox", "Age")
    ]
    assert [column["name"] for column in columns if "priority" in column] == [
        *("Tokens", "Cost", "Attempt", "Approvals", "Pod")
    ]
    assert version("AgentRun")["selectableFields"] == [{"jsonPath": ".status.phase"}]
    assert version("AgentRun")["subresources"] == {"status": {}}


def test_each_field_of_a_run_is_fixed_by_a_rule_of_its_own_unless_it_is_a_switch() -> None:
    spec = version("AgentRun")["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = {rule["rule"] for rule in spec["x-kubernetes-validations"]}
    fixed = {
        name
        for name in spec["properties"]
        if f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})" in rules
    }
    assert set(spec["properties"]) - fixed == set(MUTABLE)
    assert "has(self.prompt) != has(self.promptFrom)" in rules
    assert "!oldSelf.?cancel.orValue(false) || self.?cancel.orValue(false)" in rules
    assert len(rules) == len(fixed) + 2


def test_what_happened_to_a_run_cannot_be_taken_back() -> None:
    root = version("AgentRun")["schema"]["openAPIV3Schema"]
    assert [rule["message"] for rule in root["x-kubernetes-validations"]] == [
        "the outcome of a run is written once",
        "the condition Finished never reverts",
        "status.epoch never falls",
    ]
    conditions = root["properties"]["status"]["properties"]["conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_field_is_described(kind: Kind) -> None:
    root = version(kind.name)["schema"]["openAPIV3Schema"]
    missing = [path for part in ("spec", "status") for path in undescribed(root["properties"].get(part, {}), part)]
    assert missing == []


def undescribed(schema: dict[str, Any], path: str) -> list[str]:
    found = []
    for name, field in schema.get("properties", {}).items():
        found += [] if field.get("description") else [f"{path}.{name}"]
        found += undescribed(field, f"{path}.{name}") + undescribed(field.get("items", {}), f"{path}.{name}[]")
    return found
