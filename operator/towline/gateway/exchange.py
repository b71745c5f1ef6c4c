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
from towline.gateway.strict_json import canonical
from towline.naming import CALL_ID_META, CALL_ID_PATTERN, CANCEL_META, OUTCOME_META, TRUNCATED_META

UNPARSABLE_META = "towline.dev/unparsable"
"""Key in a request's `_meta`: the raw text of a model's arguments that were no JSON object."""

MAX_UNPARSABLE_CHARACTERS = 16_384
"""Of a broken argument text, what is recorded; all of it stands in the harness' agent.message."""

_CALL_ID = re.compile(CALL_ID_PATTERN)


@dataclass(frozen=True)
class ToolRequest:
    """One tool call as asked for. `unparsable` holds the model's raw text when there are no arguments to speak of.

    `cancel` asks for the end of the call instead of its execution; both are answered with its one result.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    unparsable: str | None = None
    cancel: bool = False

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

    @property
    def meta(self) -> dict[str, Any]:
        return {CALL_ID_META: self.call_id, OUTCOME_META: self.outcome, TRUNCATED_META: self.truncated}

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
    return ToolRequest(_call_id(meta.get(CALL_ID_META)), name[:200], arguments, unparsable, cancel)


def _call_id(given: Any) -> str:
    if given is None:
        return f"tc_{secrets.token_hex(8)}"
    if not isinstance(given, str) or _CALL_ID.fullmatch(given) is None:
        raise Invalid(f"params._meta[{CALL_ID_META!r}]: expected a call id, {CALL_ID_PATTERN}")
    return given
