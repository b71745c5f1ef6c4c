"""Kubernetes quantities: `512Mi` to bytes, `500m` to thousandths of a core.

Used by `sandboxclass.py` for its fields and by `resolve.py` for their values. Only what sizes of a sandbox need:
no sign, no exponent. Pure.
"""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,9})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
_MILLIS_PATTERN = r"^([0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m)$"
_NUMBER_AND_UNIT = re.compile(r"([0-9.]+)([A-Za-z]*)")


def parse_bytes(text: str) -> int:
    """`1Gi`, `1.5G`, `1048576` in bytes, rounded up; raises ValueError for anything else, and for 0."""
    if not re.fullmatch(_BYTES_PATTERN, text):
        raise ValueError(f'is "{text}"; expected a size such as 512Mi, 2Gi or 1048576')
    number, unit = _split(text)
    return _positive(text, number * _BYTES[unit])


def parse_millis(text: str) -> int:
    """`500m`, `0.5`, `2` in thousandths of a core; raises ValueError for anything else, and for 0."""
    if not re.fullmatch(_MILLIS_PATTERN, text):
        raise ValueError(f'is "{text}"; expected cores such as 500m, 0.5 or 2')
    number, unit = _split(text)
    return _positive(text, number if unit == "m" else number * 1000)


def _split(text: str) -> tuple[Decimal, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    assert match is not None, "both patterns are narrower than this one"
    return Decimal(match[1]), match[2]


def _positive(text: str, amount: Decimal) -> int:
    whole = int(amount.to_integral_value(rounding="ROUND_CEILING"))
    if whole == 0:
        raise ValueError(f'is "{text}"; expected more than nothing')
    return whole


def _text(value: Any) -> Any:
    """Whole numbers are quantities too; a fraction is not, since the API server's int-or-string refuses it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, float):
        raise ValueError(f'is {value}; expected a whole number, or the fraction as text: "{value}"')
    return str(value)


def _checked_bytes(text: str) -> str:
    parse_bytes(text)
    return text


def _checked_millis(text: str) -> str:
    parse_millis(text)
    return text


Bytes = Annotated[
    str,
    BeforeValidator(_text),
    Field(max_length=32),
    AfterValidator(_checked_bytes),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": _BYTES_PATTERN}),
]
"""A size as it is written; `parse_bytes` gives the number."""

Cores = Annotated[
    str,
    BeforeValidator(_text),
    Field(max_length=32),
    AfterValidator(_checked_millis),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": _MILLIS_PATTERN}),
]
"""An amount of CPU as it is written; `parse_millis` gives the number."""


def written(amount: int) -> str:
    """Bytes as a person would write them, where that is exact."""
    return next((f"{amount // size}{unit}" for unit, size in _BINARY if amount % size == 0), str(amount))


_BINARY = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
