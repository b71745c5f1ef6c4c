"""What becomes of a pydantic model in a CRD, and what is refused instead of being weakened."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from towline.api.common import LIST_SET, Part, list_map, rules
from towline.api.quantities import Bytes
from towline.api.structural import Unsupported, structural

Short = Annotated[str, Field(max_length=8)]


class Inner(Part):
    """An inner object."""

    name: Short = "a"
    """What it
    is called."""


class Outer(Part):
    """An outer object."""

    required: Literal["one"]
    choice: Literal["x", "y"] = "x"
    inner: Inner | None = None
    given: Inner = Inner()
    empty: tuple[Short, ...] = Field(default=(), max_length=2, json_schema_extra=LIST_SET)
    by_name: Annotated[tuple[Inner, ...], Field(max_length=3, json_schema_extra=list_map("name"))] = ()
    labels: Annotated[dict[str, Short], Field(max_length=4)] = Field(default_factory=dict)
    free: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})] = Field(
        default_factory=dict
    )
    count: Annotated[int, Field(ge=1)] | None = None
    size: Bytes | None = None

    model_config = ConfigDict(json_schema_extra=rules(("self.count > 0", "more than nothing")))


def test_a_model_becomes_a_structural_schema() -> None:
    inner = {
        "description": "An inner object.",
        "type": "object",
        "properties": {
            "name": {"description": "What it is called.", "type": "string", "default": "a", "maxLength": 8},
        },
    }
    assert structural(Outer) == {
        "description": "An outer object.",
        "type": "object",
        "required": ["required"],
        "x-kubernetes-validations": [{"rule": "self.count > 0", "message": "more than nothing"}],
        "properties": {
            "required": {"type": "string", "enum": ["one"]},
            "choice": {"type": "string", "enum": ["x", "y"], "default": "x"},
            "inner": inner,
            "given": inner | {"default": {"name": "a"}},
            "empty": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "string", "maxLength": 8},
                "x-kubernetes-list-type": "set",
            },
            "byName": {
                "type": "array",
                "maxItems": 3,
                "items": inner,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "labels": {
                "type": "object",
                "maxProperties": 4,
                "additionalProperties": {"type": "string", "maxLength": 8},
            },
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "count": {"type": "integer", "format": "int64", "minimum": 1},
            "size": {
                "x-kubernetes-int-or-string": True,
                "pattern": "^[0-9]{1,15}(\\.[0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?$",
            },
        },
    }


class Tree(BaseModel):
    children: Annotated[tuple["Tree", ...], Field(max_length=2)] = ()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Tree, "Model.field.children[]: Tree contains itself"),
        (Short | int, "Model.field: a union; use one optional field for each variant"),
        (str, "Model.field: a string needs maxLength"),
        (tuple[Short, ...], "Model.field: a list needs one type of items and maxItems"),
        (tuple[Short, Short], "Model.field: keyword prefixItems"),
        (dict[str, Short], "Model.field: a map needs a type of values and maxProperties"),
        (dict[str, Any], "Model.field: a map needs a type of values and maxProperties"),
        (Annotated[dict[Short, Short], Field(max_length=2)], "Model.field: keyword propertyNames"),
        (float, "Model.field: type number"),
        (Any, "Model.field: no type"),
        (Annotated[int, Field(gt=0)], "Model.field: keyword exclusiveMinimum"),
        (Annotated[int, Field(examples=[1])], "Model.field: keyword examples"),
    ],
)
def test_what_a_server_would_refuse_or_weaken_is_refused_at_generation(declared: Any, message: str) -> None:
    model = create_model("Model", field=(declared, ...))
    with pytest.raises(Unsupported) as refused:
        structural(model)
    assert str(refused.value) == message
