"""The pages of the kinds name every field, with the default and the bounds that the schema has."""

import re
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest

from towline.api.conditions import OUTCOMES, PHASES, REASONS, ConditionType
from towline.api.crds import KINDS, Kind, definition
from towline.api.documents import read
from towline.api.yaml_documents import parse

FOLDER = Path(__file__).parents[2] / "docs" / "spec"


def page(kind: Kind) -> str:
    return (FOLDER / f"{kind.name.lower()}.md").read_text(encoding="utf-8")


def table_rows(text: str) -> list[tuple[str, ...]]:
    """The cells of each row that begins with a name."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in row.split("|")[1:-1]) for row in rows]


def properties(kind: Kind, part: str) -> dict[str, Any]:
    root = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    found: dict[str, Any] = root.get(part, {})
    return found


def fields(schema: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Path, schema and whether it is required, of every field below an object, in the schema's order."""
    for name, field in schema.get("properties", {}).items():
        path = f"{above}{name}" + ("[]" if field.get("type") == "array" and "properties" in field["items"] else "")
        yield path, field, name in schema.get("required", ())
        yield from fields(field.get("items", field), f"{path}.")


def default(field: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    value = field.get("default")
    if value is None or field["type"] == "object":
        return "–"
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def bounds(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "x-kubernetes-int-or-string" in field:
        return "quantity"
    match field["type"]:
        case "integer":
            return (
                f"{field['minimum']:,} to {field['maximum']:,}" if "maximum" in field else f"from {field['minimum']:,}"
            )
        case "string":
            return f"≤ {field['maxLength']:,} characters"
        case "array":
            return (
                f"{field['minItems']} to {field['maxItems']} entries"
                if "minItems" in field
                else f"≤ {field['maxItems']} entries"
            )
        case "object" if "maxProperties" in field:
            return f"≤ {field['maxProperties']} entries"
    return "–"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_page_of_a_kind_has_a_row_for_each_field_of_its_spec(kind: Kind) -> None:
    rows = [row for row in table_rows(page(kind)) if len(row) == 4]
    expected = [
        (f"`{path}`", default(field, required), bounds(field))
        for path, field, required in fields(properties(kind, "spec"))
    ]
    assert sorted((row[0], *row[2:]) for row in rows) == sorted(expected)
    assert all(row[1] for row in rows)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_manifest_on_the_page_is_valid(kind: Kind) -> None:
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```", page(kind), re.MULTILINE | re.DOTALL)
    assert read(list(parse(manifest, kind.name)))


def test_the_page_of_agentrun_has_a_row_for_each_field_of_its_status_each_condition_and_each_outcome() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "AgentRun")
    expected = [
        (f"`{path}`", field["description"])
        for path, field, _ in fields(properties(kind, "status"))
        if not path.startswith("conditions[].")
    ]
    told = [each for each in REASONS if each not in (ConditionType.SUCCEEDED, ConditionType.FINISHED)]
    expected += [(f"`{each}`", " · ".join(starmap(beside, REASONS[each].items()))) for each in told]
    expected += [(f"`{reason}`", meaning) for reason, meaning in OUTCOMES.items()]

    assert sorted(row for row in table_rows(page(kind)) if len(row) == 2) == sorted(expected)


def beside(reason: str, meaning: str) -> str:
    return f"`{reason}` {meaning[0].lower()}{meaning[1:].removesuffix('.')}"


def test_the_page_of_agentrun_names_its_phases() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "AgentRun")
    assert [name for name in PHASES if f"`{name}`" not in page(kind)] == []
