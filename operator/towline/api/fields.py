"""Paths into our models by their wire names, and the nearest known word for a mistyped one.

Used by `documents.py` to explain a fault and to read `--set`, and by `resolve.py` for its suggestions. Pure.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel


def type_at(model: type[BaseModel], path: Sequence[str | int]) -> Any:
    """The declared type that `path` leads to, without Optional and Annotated; None where no model says."""
    found: Any = model
    for step in path:
        if isinstance(found, type) and issubclass(found, BaseModel):
            fields = {field.alias or name: field for name, field in found.model_fields.items()}
            found = _bare(fields[str(step)].annotation) if step in fields else None
        elif get_origin(found) is dict:
            found = _bare(get_args(found)[1])
        elif get_origin(found) is tuple:
            found = _bare(get_args(found)[0])
        else:
            return None
    return found


def _bare(annotation: Any) -> Any:
    """`Annotated[X | None, …]` is X."""
    arguments = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _bare(arguments[0])
    if type(None) in arguments:
        return _bare(next(each for each in arguments if each is not type(None)))
    return annotation


def field_names(model: type[BaseModel]) -> list[str]:
    """The wire names of a model's fields."""
    return [field.alias or name for name, field in model.model_fields.items()]


def dotted(path: Sequence[str | int]) -> str:
    """`spec.workspace.files[0].path`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, whatever its case; None when none is near."""
    by_lower = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`did you mean "x"?`, or the list of what is known."""
    if (meant := nearest(word, known)) is not None:
        return f'did you mean "{meant}"?'
    return f"known: {listed(known)}" if known else "there is none"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    return " ".join(filter(None, (", ".join(words[:-1]), last if len(words) > 1 else "", *words[-1:])))
