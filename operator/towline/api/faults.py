"""One sentence for each fault that validation found, for the person who wrote the manifest.

Called by `documents.py`. A sentence names the field by its wire path, what was seen and what was expected. Values of
fields that may be long or secret are described, never repeated. Pure.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from towline.api.common import EXPECTED
from towline.api.fields import did_you_mean, dotted, field_names, listed, nearest, type_at

_DESCRIBED_ONLY = {
    "secretRef",
    "baseURL",
    "url",
    "prompt",
    "systemPrompt",
    "params",
    "content",
    "scripted",
    "annotations",
}
"""Anything below these may be long, or a key that somebody pasted at the wrong place."""

_LONGEST_SHOWN = 60

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "bool_type": "true or false",
    "string_type": "a string",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
}


def sentence(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """`spec.limits.maxTurns is 0; expected at least 1`, for a fault of pydantic's in a document of kind `model`."""
    path, kind, value, context = fault["loc"], fault["type"], fault["input"], fault.get("ctx", {})
    field = dotted(path)
    match kind:
        case "value_error":
            return f"{field} {context['error']}".strip()
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden":
            return f"{field} is no field{_of(model, path[:-1])}; {_known(model, path)}"
        case "literal_error":
            return f"{field} is {seen(path, value)}; {_choices(model, path, value)}"
        case "string_too_long":
            return f"{field} is {len(value)} characters long; expected at most {context['max_length']}"
        case "string_too_short":
            return f"{field} is empty; expected text"
        case "too_long":
            return f"{field} has {len(value)} entries; expected at most {context['max_length']}"
        case "too_short":
            return f"{field} has {len(value)} entries; expected at least {context['min_length']}"
        case "greater_than_equal":
            return f"{field} is {seen(path, value)}; expected at least {context['ge']}"
        case "less_than_equal":
            return f"{field} is {seen(path, value)}; expected at most {context['le']}"
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return f"{field} is {seen(path, value)}; expected {EXPECTED.get(pattern, f'text that matches {pattern}')}"
    expected = _EXPECTED.get(kind, fault["msg"][:1].lower() + fault["msg"][1:])
    # `tag: 1.10` and `answer: yes` are no strings in YAML, which surprises most people once.
    hint = " (quote it)" if kind == "string_type" and isinstance(value, int | float) else ""
    return f"{field} is {seen(path, value)}; expected {expected}{hint}"


def seen(path: Sequence[str | int], value: Any) -> str:
    """The value as it was written, or a description of one that is long, nested or possibly secret."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str) and (len(value) > _LONGEST_SHOWN or not _DESCRIBED_ONLY.isdisjoint(map(str, path))):
        return f"a string of {len(value)} characters"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN + 2 else f"a number of {len(text)} digits"


def _of(model: type[BaseModel], path: Sequence[str | int]) -> str:
    return f" of {dotted(path)}" if path else f" of {model.__name__}"


def _known(model: type[BaseModel], path: Sequence[str | int]) -> str:
    parent = type_at(model, path[:-1])
    names = field_names(parent) if isinstance(parent, type) and issubclass(parent, BaseModel) else []
    return did_you_mean(str(path[-1]), names)


def _choices(model: type[BaseModel], path: Sequence[str | int], value: Any) -> str:
    declared = type_at(model, path)
    choices = [str(choice) for choice in get_args(declared)] if get_origin(declared) is Literal else []
    near = nearest(value, choices) if isinstance(value, str) else None
    return f"expected {listed(choices, 'or')}" + (f'; did you mean "{near}"?' if near and len(choices) > 1 else "")
