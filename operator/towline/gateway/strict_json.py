"""JSON from strangers, read in the one way that leaves no second reading.

Used for the bodies of callers and the lines of sandboxes. Two keys of one name, NaN, deep nesting and non-objects are
refused, since two parsers that disagree about them are how a check is walked around.
"""

import json
from typing import Any, cast

MAX_DEPTH = 64


class Malformed(ValueError):
    """The text is not JSON, or is JSON that two readers may understand differently."""


def loads(raw: bytes | bytearray) -> dict[str, Any]:
    """The one JSON object in `raw`; raises Malformed. Lone surrogates, which no UTF-8 text can hold, become `?`."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise Malformed("nested too deeply") from None
    except ValueError as fault:
        raise Malformed(str(fault)) from None
    if not isinstance(value, dict):
        raise Malformed(f"expected one object, got {type(value).__name__}")
    # Counting brackets is a memory scan; only a body that could be too deep pays for the walk.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise Malformed(f"nested more than {MAX_DEPTH} deep")
    if b"\\ud" in raw or b"\\uD" in raw:
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return cast(dict[str, Any], value)


def canonical(value: Any) -> bytes:
    """One spelling for one value: sorted keys, no spaces. Equal values give equal bytes on every gateway."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Malformed(f"the key {twice[:100]!r} appears twice in one object")
    return value


def _no_constant(name: str) -> Any:
    raise Malformed(f"{name} is not JSON")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
