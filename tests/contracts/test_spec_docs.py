"""The pages of the kinds name every field, with the default and the bounds that the schema has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from towline.api.conditions import PHASES, REASONS
from towline.api.crds import KINDS, Kind, definition
from towline.api.documents import read
from towline.api.yaml_documents import parse

FOLDER = Path(__file__).parents[2] / "docs" / "spec"


def page(kind: Kind) -> str:
    return (FOLDER / f"{kind.name.lower()}.md").read_text(encoding="utf-8")


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
    rows = {
        tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in page(kind).splitlines() if line[:3] == "| `"
    }
    documented = {(row[0], *row[2:]) for row in rows if len(row) == 4}
    expected = {
        (f"`{path}`", default(field, required), bounds(field))
        for path, field, required in fields(properties(kind, "spec"))
    }
    assert documented == expected
    assert all(row[1] for row in rows)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_manifest_on_the_page_is_valid(kind: Kind) -> None:
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```", page(kind), re.MULTILINE | re.DOTALL)
    assert read(list(parse(manifest, kind.name)))


def test_the_page_of_agentrun_names_its_status_phases_and_reasons() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "AgentRun")
    text = page(kind)
    names = [path for path, _, _ in fields(properties(kind, "status")) if not path.startswith("conditions[].")]
    names += [*PHASES, *REASONS, *(reason for reasons in REASONS.values() for reason in reasons)]
    assert [name for name in names if f"`{name}`" not in text] == []
