"""What the kinds share: the base model, names and references, limits, tool policy, object metadata.

Used by the modules of the kinds in this package. A field's docstring becomes its description in the CRD, and every
string, list and map is bounded, since the API server estimates the cost of CEL rules from the bounds.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

GROUP = "towline.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["towline.dev/v1alpha1"] = "towline.dev/v1alpha1"

PLATFORM_NAMESPACE = "towline-system"
"""Where the platform's own templates live; looked at after the run's namespace."""

TOOLS = ("exec", "read_file", "write_file", "edit_file", "list_dir", "search")
"""The gateway's tools that work in a sandbox."""

_INITIALISMS = {"usd": "USD", "url": "URL", "uid": "UID"}


def camel(name: str) -> str:
    """The wire name of a field: camel case, initialisms whole (`base_url` is `baseURL`)."""
    first, *rest = name.split("_")
    return first + "".join(_INITIALISMS.get(word, word.capitalize()) for word in rest)


class Part(BaseModel):
    """Base of everything in a manifest: camel case on the wire, immutable, strict, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Self:
        """The model of a manifest or of an API server's object; raises pydantic.ValidationError.

        By way of JSON: strict validation of Python values takes no list for a tuple and no text for a time.
        """
        return cls.model_validate_json(json.dumps(raw), by_alias=True, by_name=False)


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules with their messages, for `json_schema_extra`; the same rules stand in the model's validators."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def list_map(key: str) -> dict[str, Any]:
    """Marks a list whose items are told apart by `key`: no duplicates, and server-side apply merges by item."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


LIST_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""Marks a list of strings without duplicates."""


def repeated(names: Iterable[str]) -> str | None:
    """The first name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if (twice := repeated(names)) is not None:
        raise ValueError(f'holds "{twice}" twice; expected distinct names')
    return names


Distinct = AfterValidator(_distinct)
"""Python's side of LIST_SET."""

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
TOOL_PATTERN = r"^[A-Za-z0-9_./-]+$"
URL_PATTERN = r"^https?://[^\s]+$"
ABSOLUTE_PATH_PATTERN = r"^/"
KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"

EXPECTED = {
    NAME_PATTERN: 'lower-case letters, digits, "-" and ".", with a letter or digit at both ends',
    LABEL_PATTERN: 'lower-case letters, digits and "-", with a letter or digit at both ends',
    TOOL_PATTERN: 'letters, digits, "_", ".", "/" and "-"',
    URL_PATTERN: "an address that begins with http:// or https://",
    ABSOLUTE_PATH_PATTERN: "an absolute path",
    KEY_PATTERN: 'letters, digits, "-", "_" and "."',
}
"""What a pattern asks for, in words."""

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)]
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=TOOL_PATTERN)]
URL = Annotated[str, Field(min_length=1, max_length=1024, pattern=URL_PATTERN)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


class ObjectMeta(Part):
    """The part of Kubernetes' metadata that we read; what else an API server puts there is left alone."""

    model_config = ConfigDict(extra="ignore")

    name: Name
    namespace: Namespace | None = None
    uid: Annotated[str, Field(max_length=64)] | None = None
    generation: int | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class SecretRef(Part):
    """A key of a Secret in the harness namespace. The value itself never stands in one of our objects."""

    name: Name
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=KEY_PATTERN)] = "api-key"
    """Key in the Secret's data."""


class Limits(Part):
    """Bounds on a run, cumulative over all its attempts and checked before the next request. Absent: no bound."""

    max_turns: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Turns: from the prompts the model takes up to its answer without tool uses."""
    max_tool_calls: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Tool calls that the gateway accepted."""
    max_input_tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Tokens sent to the model, the cached ones too."""
    max_output_tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Tokens received from the model."""
    max_cost_micro_usd: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Cost of all model requests in millionths of a US dollar. Needs a price for the model."""


class ToolRule(Part):
    """A tool, and what happens to its calls."""

    tool: ToolName
    """Name of the tool."""
    action: Literal["Allow", "Deny"]
    """Allow forwards the call, Deny answers it with an error that the model sees."""


class ToolPolicy(Part):
    """Which of the template's tools may be called. A tool that the template does not list is always denied."""

    default: Literal["Allow", "Deny"] = "Allow"
    """For listed tools that no rule names."""
    rules: Annotated[tuple[ToolRule, ...], Field(max_length=64)] = ()
    """The first rule that names a tool decides."""

    def action(self, tool: str) -> Literal["Allow", "Deny"]:
        """What this policy says about calls of `tool`."""
        return next((rule.action for rule in self.rules if rule.tool == tool), self.default)
