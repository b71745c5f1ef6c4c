"""Pydantic models to structural OpenAPI schemas that a Kubernetes API server accepts under strict validation.

Used by `crds.py`. Inlines references, turns Optional into plain absence, constants into enums, and drops what a
server would drop with a warning. Whatever it cannot express faithfully is refused with `Unsupported`, at generation
time, instead of being accepted by the server as something weaker.
"""

import copy
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    *("description", "type", "format", "enum", "default", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    *("minItems", "maxItems", "maxProperties", "required"),
)
"""Keywords taken over as they are, in the order they are written."""

_APART = {"title", "const", "additionalProperties", "properties", "items"}
"""title says nothing new; the others are converted."""


class Unsupported(Exception):
    """A model says something that a structural schema cannot. The message names the place."""


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of `model`, by its wire names."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(schema.pop("$defs", {})).convert(schema, model.__name__)


class _Converter:
    def __init__(self, definitions: dict[str, Schema]) -> None:
        self._definitions = definitions

    def convert(self, schema: Schema, path: str, above: frozenset[str] = frozenset()) -> Schema:
        """`above` holds the definitions that lie on the way from the root, to notice recursion."""
        schema, above = self._inlined(schema, path, above)
        kind, converted = schema.get("type"), self._attributes(schema, path)
        if schema.get("x-kubernetes-int-or-string"):
            return converted
        if kind is None:
            raise Unsupported(f"{path}: no type")
        if kind == "object":
            self._object(schema, converted, path, above)
        elif kind == "array":
            if "items" not in schema or "maxItems" not in schema:
                raise Unsupported(f"{path}: a list needs one type of items and maxItems")
            converted["items"] = self.convert(schema["items"], f"{path}[]", above)
        elif kind == "string":
            self._string(schema, path)
        elif kind == "integer":
            converted["format"] = "int64"
        elif kind != "boolean":
            raise Unsupported(f"{path}: type {kind}")
        return converted

    def _inlined(self, schema: Schema, path: str, above: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """The schema without references and without Optional's null, its own keywords over the inlined ones."""
        while True:
            own = dict(schema)
            if "$ref" in own:
                name = own.pop("$ref").rsplit("/", 1)[1]
                if name in above:
                    raise Unsupported(f"{path}: {name} contains itself")
                above |= {name}
                schema = copy.deepcopy(self._definitions[name]) | own
            elif "anyOf" in own or "oneOf" in own:
                members = own.pop("anyOf", None) or own.pop("oneOf")
                members = [member for member in members if member.get("type") != "null"]
                if len(members) != 1:
                    raise Unsupported(f"{path}: a union; use one optional field for each variant")
                schema = members[0] | own
            else:
                return own, above

    def _attributes(self, schema: Schema, path: str) -> Schema:
        """The keywords that a server knows, `const` as an enum, and a default only where it says something."""
        for key in schema:
            if key not in _KEPT and key not in _APART and not key.startswith("x-kubernetes-"):
                raise Unsupported(f"{path}: keyword {key}")
        said = {key: schema[key] for key in _KEPT if key in schema}
        if "description" in said:
            said["description"] = " ".join(said["description"].split())
        if "const" in schema:
            said["enum"] = [schema["const"]]
        if "default" in said and (default := _without_nothing(said.pop("default"))) is not None:
            said["default"] = default
        return said | {key: value for key, value in schema.items() if key.startswith("x-kubernetes-")}

    def _object(self, schema: Schema, converted: Schema, path: str, above: frozenset[str]) -> None:
        if "properties" in schema:
            converted["properties"] = {
                name: self.convert(value, f"{path}.{name}", above) for name, value in schema["properties"].items()
            }
            return
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return
        if not isinstance(schema.get("additionalProperties"), dict) or "maxProperties" not in schema:
            raise Unsupported(f"{path}: a map needs a type of values and maxProperties")
        converted["additionalProperties"] = self.convert(schema["additionalProperties"], f"{path}[*]", above)

    def _string(self, schema: Schema, path: str) -> None:
        bounded = "maxLength" in schema or "enum" in schema or "const" in schema or schema.get("format") == "date-time"
        if not bounded:
            raise Unsupported(f"{path}: a string needs maxLength")


def _without_nothing(value: Any) -> Any:
    """A default without nulls and empty members; None when nothing is left of it."""
    if isinstance(value, dict):
        members = {key: _without_nothing(member) for key, member in value.items()}
        value = {key: member for key, member in members.items() if member is not None}
    return None if value is None or value in ({}, [], "") else value
