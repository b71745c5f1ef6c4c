"""Runs, drafts and events: what a writer hands in, what a reader gets, and the envelope line between programs.

Called by everything that touches the log. Pure: the caller gives the clock.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from towline.clock import rfc3339
from towline.errors import Invalid
from towline.events.types import EVENT_TYPES
from towline.naming import RunKeys

TERMINAL_TYPES = frozenset({"run.completed", "run.failed", "run.cancelled"})
"""A log holds exactly one of these, as its last event."""

MAX_DATA_BYTES = 8 * 1024 * 1024
"""Largest data of one event; more is a mistake of the writer, which bounds its output long before."""

_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_EVENT_ID = re.compile(r"ev_[0-9a-f]{20}")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class RunRef:
    """Which run. Keys depend on namespace and UID alone; readers look up an absent name in `meta`."""

    namespace: str
    uid: str
    name: str = ""

    @property
    def keys(self) -> RunKeys:
        return RunKeys(self.namespace, self.uid)


@dataclass(frozen=True, slots=True)
class Draft:
    """An event not yet in the log. `id` is its identity for good; seq, src and epoch are given by the append."""

    id: str
    type: str
    time: str
    data: bytes
    turn: int | None = None


class Seen(NamedTuple):
    """Up to where a writer saw the log confirmed. Another event at that seq, or none: the store has lost a tail."""

    seq: int = 0
    incarnation: int = 0
    event_id: str = ""
    """Of the event at `seq`; empty when that is not known."""


NOTHING_SEEN = Seen()


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a log. `data` is the JSON its writer made, byte for byte."""

    seq: int
    id: str
    type: str
    run: RunRef
    turn: int | None
    time: str
    src: str
    epoch: int
    data: bytes

    def line(self) -> bytes:
        """The envelope: one line of JSON without its newline, keys always in this order."""
        turn = "null" if self.turn is None else str(self.turn)
        head = (
            f'{{"seq":{self.seq},"id":"{self.id}","type":"{self.type}","run":{_run_json(self.run)},"turn":{turn},'
            f'"time":"{self.time}","src":"{self.src}","epoch":{self.epoch},"data":'
        )
        return b"%b%b}" % (head.encode(), self.data)

    @property
    def payload(self) -> dict[str, Any]:
        """`data`, parsed anew at each use."""
        parsed: dict[str, Any] = json.loads(self.data)
        return parsed

    @property
    def terminal(self) -> bool:
        return self.type in TERMINAL_TYPES


def new_event_id() -> str:
    return "ev_" + secrets.token_hex(10)


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8. A lone surrogate, which models do emit and UTF-8 cannot hold, becomes its \\u escape."""
    try:
        text = _encode(value)
    except ValueError as error:
        raise Invalid(f"event data: {error}; expected plain JSON values") from error
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _encode_ascii(value).encode()


def lasting_id(run: RunRef, what: str) -> str:
    """The id of an event that is written again, should the store lose it: the same for the same `what` of a run."""
    return "ev_" + hashlib.sha256(f"{run.uid} {what}".encode()).hexdigest()[:20]


def draft(
    type: str, data: Mapping[str, Any], *, now: datetime, turn: int | None = None, event_id: str | None = None
) -> Draft:
    """A new event; raises Invalid for data that is no JSON or beyond MAX_DATA_BYTES."""
    if type not in EVENT_TYPES and not _TYPE.fullmatch(type):
        raise Invalid(f"event type {type!r}: expected lower-case words joined by dots")
    if event_id is not None and not _EVENT_ID.fullmatch(event_id):
        raise Invalid(f"event id {event_id!r}: expected ev_ and 20 hexadecimal digits")
    body = to_json(data)
    if len(body) > MAX_DATA_BYTES:
        raise Invalid(f"event {type}: {len(body)} bytes of data; expected at most {MAX_DATA_BYTES}")
    return Draft(event_id or new_event_id(), type, rfc3339(now), body, turn)


@lru_cache(maxsize=4096)
def _run_json(run: RunRef) -> str:
    return f'{{"namespace":{json.dumps(run.namespace)},"name":{json.dumps(run.name)},"uid":{json.dumps(run.uid)}}}'
