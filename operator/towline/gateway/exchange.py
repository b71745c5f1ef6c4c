"""What both faces hand down to `calls.py` and get back: one tool call and its answer, free of HTTP and of the SDK.

`read_request` is the only reader of a `tools/call` request's parameters; it decides on the body alone.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from towline.errors import Invalid
from towline.events.event import NOTHING_SEEN, Seen
from towline.gateway.strict_json import canonical
from towline.naming import (
    CALL_ID_META,
    CALL_ID_PATTERN,
    CANCEL_META,
    DISPATCHED_META,
    MAX_TOOL_NAME_CHARACTERS,
    OUTCOME_META,
    RECORD_META,
    SEEN_META,
    TRUNCATED_META,
    UNPARSABLE_META,
)

_DISPATCHED = re.compile(r"([A-Za-z0-9.-]{1,100}) ([0-9a-f]{32})")
_SEEN = re.compile(r"([0-9]{1,15}) ([0-9]{1,15})(?: (ev_[0-9a-f]{20}))?")
_CALL_ID = re.compile(CALL_ID_PATTERN)


@dataclass(frozen=True)
class ToolRequest:
    """One tool call as asked for. `unparsable` holds the model's raw text when there are no arguments to speak of.

    `cancel` asks for the end of the call instead of its execution; both are answered with its one result. `dispatched`
    names the sandbox and the instance of its tool server that had the call before the store lost its record; `seen` is
    up to where the caller saw the log confirmed.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    unparsable: str | None = None
    cancel: bool = False
    dispatched: tuple[str, str] | None = None
    seen: Seen = NOTHING_SEEN

    @cached_property
    def args_hash(self) -> str:
        """Equal for equal tool and arguments, whatever their spelling; the ledger refuses a call id with another."""
        return hashlib.sha256(canonical([self.name, self.arguments, self.unparsable])).hexdigest()


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A call's one recorded result, as the caller sees it."""

    call_id: str
    outcome: str
    text: str
    truncated: bool
    record: dict[str, Any] | None = None
    """See `events/adopted.py`; None where the log does not hold the call's events any more."""

    @property
    def meta(self) -> dict[str, Any]:
        meta = {CALL_ID_META: self.call_id, OUTCOME_META: self.outcome, TRUNCATED_META: self.truncated}
        return meta if self.record is None else {**meta, RECORD_META: self.record}

    def to_mcp(self) -> dict[str, Any]:
        """A CallToolResult. No structuredContent: some clients would show the model that instead of the text."""
        return {
            "content": [{"type": "text", "text": self.text}],
            "isError": self.outcome != "ok",
            "resultType": "complete",
            "_meta": self.meta,
        }


def read_request(params: Mapping[str, Any]) -> ToolRequest:
    """The call in the parameters of a `tools/call`; raises Invalid when they are none."""
    name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
    if not isinstance(name, str) or not name:
        raise Invalid("params.name: expected the name of a tool")
    name = name[:MAX_TOOL_NAME_CHARACTERS]
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Invalid(f"params.arguments: expected an object, got {type(arguments).__name__}")
    if meta is None:
        meta = {}
    if not isinstance(meta, Mapping):
        raise Invalid(f"params._meta: expected an object, got {type(meta).__name__}")
    unparsable = meta.get(UNPARSABLE_META)
    if unparsable is not None and (not isinstance(unparsable, str) or arguments):
        raise Invalid(f"params._meta[{UNPARSABLE_META!r}]: expected text, and no arguments beside it")
    cancel = meta.get(CANCEL_META, False)
    if not isinstance(cancel, bool) or (cancel and CALL_ID_META not in meta):
        raise Invalid(f"params._meta[{CANCEL_META!r}]: expected true or false, and the call id beside it")
    dispatched, seen = _words(meta, DISPATCHED_META, _DISPATCHED), _words(meta, SEEN_META, _SEEN)
    return ToolRequest(
        *(_call_id(meta.get(CALL_ID_META)), name, arguments, unparsable, cancel),
        dispatched=(dispatched[0], dispatched[1]) if dispatched else None,
        seen=Seen(int(seen[0]), int(seen[1]), seen[2]) if seen else NOTHING_SEEN,
    )


def _words(meta: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> tuple[str, ...] | None:
    """The groups of the pattern, empty where one may be left out and is; None without the key."""
    if (given := meta.get(key)) is None:
        return None
    words = pattern.fullmatch(given) if isinstance(given, str) else None
    if words is None:
        raise Invalid(f"params._meta[{key!r}]: expected {pattern.pattern}")
    return words.groups(default="")


def _call_id(given: Any) -> str:
    if given is None:
        return f"tc_{secrets.token_hex(8)}"
    if not isinstance(given, str) or _CALL_ID.fullmatch(given) is None:
        raise Invalid(f"params._meta[{CALL_ID_META!r}]: expected a call id, {CALL_ID_PATTERN}")
    return given
