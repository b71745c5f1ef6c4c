"""The ledger of tool calls: claimed once, dispatched once, settled once.

Called by the gateway. A call id is executed at most once, ever, whichever gateway it reaches and however often; the
events `agent.tool_use` and `agent.tool_result` are appended by the same script that changes the ledger.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from towline.clock import rfc3339, utc_now
from towline.errors import Invalid, StoreLost
from towline.events.blobs import script_args
from towline.events.event import NOTHING_SEEN, Draft, Event, RunRef, Seen
from towline.events.log import EventLog, resolve
from towline.events.store import Store
from towline.naming import CALL_ID_PATTERN

State = Literal["claimed", "dispatched", "settled"]

_CALL_ID = re.compile(CALL_ID_PATTERN)

_WORD = re.compile(r"[^\s]+")


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the ledger. `sandbox` and `instance` are empty until dispatched; `result` is the JSON of the
    agent.tool_result's data, None until settled."""

    call_id: str
    name: str
    args_hash: str
    state: State
    sandbox: str = ""
    instance: str = ""
    result: bytes | None = None
    cancelled: bool = False
    """Somebody asked it to end after it was dispatched."""
    seq: int = 0
    """Of its agent.tool_use."""
    result_seq: int = 0
    """Of its agent.tool_result; 0 until settled, and for a result that came after the end of the run."""
    incarnation: int = 0
    """That of the run when this was read."""


async def claim(
    store: Store,
    run: RunRef,
    *,
    epoch: int,
    call_id: str,
    name: str,
    args_hash: str,
    event: Draft,
    seen: Seen = NOTHING_SEEN,
) -> tuple[bool, Call]:
    """True: ours to execute; `event` (agent.tool_use) is appended and the total of calls raised. False: it was claimed
    before, and this is where it stands. A repeat with the same `event` is the same claim.

    Raises Fenced (a stale harness may not even attach), CallMismatch for another tool or other arguments under this id,
    and for an id not seen before RunCancelled, LogClosed, or StoreLost: `seen` is up to where the harness saw the log
    confirmed; a call must not be logged before what led to it, should the store have lost that.
    """
    return await _first(store, run, "claim", epoch, call_id, name, args_hash, seen, [event])


async def cancel(
    store: Store,
    run: RunRef,
    *,
    epoch: int,
    call_id: str,
    name: str,
    args_hash: str,
    event: Draft,
    result: Draft,
    seen: Seen = NOTHING_SEEN,
) -> Call:
    """The call shall not run, or no longer. A call that nobody has executed is settled by `result`, after its claim by
    `event` if there was none. A dispatched one is marked, and whoever executes it is told by the notice `cancel`.

    Raises as `claim` does. A repeat changes nothing.
    """
    return (await _first(store, run, "cancel", epoch, call_id, name, args_hash, seen, [event, result]))[1]


async def dispatch(
    store: Store, run: RunRef, call_id: str, *, sandbox: str, instance: str, known: Call | None = None
) -> Call:
    """claimed → dispatched to this instance of a sandbox, compare-and-set; else who holds it, or that it is settled.

    `known` is what the claim answered. Raises StoreLost, and logs the loss, when the store has forgotten that.
    """
    _check_call_id(call_id)
    _check_word("sandbox", sandbox)
    _check_word("instance", instance)
    return (await _transition(store, run, "dispatch", call_id, [*_standing(known), sandbox, instance]))[1]


async def settle(
    store: Store,
    run: RunRef,
    call_id: str,
    *,
    event: Draft,
    before: Sequence[Draft] = (),
    new_sandbox: str = "",
    known: Call | None = None,
) -> tuple[bool, Call]:
    """The first result wins, under whatever epoch: (True, …) and `before` and `event` (agent.tool_result) are appended.
    `new_sandbox` is noted in the sandbox's record as told, when this result tells the model that it is a new one.

    (False, the call with the result that won) otherwise. After the end of the run nothing is appended; a result that
    comes later than that is only kept in the ledger, as `<id>:late`. Raises StoreLost as `dispatch` does.
    """
    _check_call_id(call_id)
    arguments = [part for one in (*before, event) for part in await script_args(store, run, one)]
    return await _transition(store, run, "settle", call_id, [*_standing(known), new_sandbox, *arguments], event.data)


async def unwanted(store: Store, run: RunRef, call_ids: Sequence[str]) -> set[str]:
    """Those of the calls whose execution serves nobody any more: cancelled, or settled by another."""
    if not call_ids:
        return set()
    fields = [field for call_id in call_ids for field in (call_id, f"{call_id}:cancel")]
    values = await store.call(lambda: store.client.execute_command("HMGET", run.keys.calls, *fields))
    lines = zip(call_ids, values[::2], values[1::2], strict=True)
    return {call_id for call_id, line, cancel in lines if cancel or (line or b"").startswith(b"settled ")}


async def open_calls(store: Store, run: RunRef) -> list[Call]:
    """The calls without a result, in the order of their claims."""
    key = run.keys.calls
    names = [
        field.decode()
        for field in await store.call(lambda: store.client.execute_command("HKEYS", key))
        if b":" not in field
    ]
    if not names:
        return []
    fields = [field for name in names for field in (name, f"{name}:name")]
    values = await store.call(lambda: store.client.execute_command("HMGET", key, *fields))
    found = [
        (int(line.split()[3]), _call(name, line, tool, None))
        for name, line, tool in zip(names, values[::2], values[1::2], strict=True)
        if not line.startswith(b"settled ")
    ]
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]


def _standing(known: Call | None) -> list[str | int]:
    """Time, seq and incarnation, by which the script tells a lost claim from one that never was."""
    return [rfc3339(utc_now()), known.seq if known else 0, known.incarnation if known else 0]


async def _first(
    store: Store,
    run: RunRef,
    verb: str,
    epoch: int,
    call_id: str,
    name: str,
    args_hash: str,
    seen: Seen,
    events: Sequence[Draft],
) -> tuple[bool, Call]:
    _check_call_id(call_id)
    _check_word("args hash", args_hash)
    drafts = [part for one in events for part in await script_args(store, run, one)]
    known = f"{seen.seq} {seen.event_id}" if seen.event_id else ""
    arguments = [epoch, json.dumps(name), args_hash, seen.seq, seen.incarnation, known, *drafts]
    return await _transition(store, run, verb, call_id, arguments)


async def _transition(
    store: Store, run: RunRef, verb: str, call_id: str, arguments: Sequence[str | bytes | int], own: bytes | None = None
) -> tuple[bool, Call]:
    """`own` is the data of the agent.tool_result that is being recorded."""
    keys = run.keys
    reply = await store.script(
        "call", [keys.meta, keys.log, keys.calls, keys.sandbox], [keys.notify, verb, call_id, *arguments]
    )
    if reply[0] == b"LOST":
        raise StoreLost(call_id)
    ours, line, name, result, cancel, incarnation = reply
    call = _call(call_id, line, name, result)
    if result == b"" and ours and own is not None:
        call = replace(call, result=own)
    elif result == b"":  # too large to be kept twice
        [event] = await EventLog(store, run).read(call.result_seq, 1)
        call = replace(call, result=event.data)
    elif result is not None:
        call = replace(call, result=await _resolved(store, run, line.split()[7].decode(), result))
    return bool(ours), replace(call, cancelled=bool(cancel), incarnation=int(incarnation))


async def _resolved(store: Store, run: RunRef, event_id: str, data: bytes) -> bytes:
    """A large result, which the ledger holds by reference as the log does."""
    event = Event(0, event_id, "agent.tool_result", run, None, "", "gateway", 0, data)
    return (await resolve(store, event)).data


def _call(call_id: str, line: bytes, name: bytes, result: Any) -> Call:
    words = ["" if word == "-" else word for word in line.decode().split()]
    state, args_hash, _, seq, sandbox, instance, _, _, *last = words
    result_seq = int(last[0] or 0) if last else 0
    return Call(
        *(call_id, json.loads(name), args_hash, cast(State, state), sandbox, instance, result),
        seq=int(seq),
        result_seq=result_seq,
    )


def _check_call_id(call_id: str) -> None:
    if not _CALL_ID.fullmatch(call_id):
        raise Invalid(f"call id {call_id[:60]!r}: expected 1 to 40 letters, digits, _ or -")


def _check_word(field: str, value: str) -> None:
    if not _WORD.fullmatch(value):
        raise Invalid(f"{field} {value[:60]!r}: expected a word without spaces")
