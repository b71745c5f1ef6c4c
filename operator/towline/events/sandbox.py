"""The sandbox of a run as gateway and operator tell each other: wanted, ready, lost, suspended, deleted.

The gateway calls `want` and waits for the notice `sandbox`; the operator waits for `want` and answers with `mark_ready`
or `mark_lost`. Nothing here creates a sandbox.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from towline.events.blobs import script_args
from towline.events.event import Draft, RunRef, draft, lasting_id
from towline.events.store import Store

UNRESPONSIVE = "Unresponsive"
"""Reason of a loss that the gateway found."""

RECORD_FIELDS = ("name", "state", "address", "provider", "reason", "message", "generation", "told")


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """`state` is Absent, Starting, Ready, Lost, Failed, Suspended or Deleted; `address` is `unix:/path` or `http://host:port`.

    `generation` rises with each want. The operator names the sandbox it starts by the next one or the same. `told` is
    the last sandbox of which a recorded result says that its workspace began anew.
    """

    name: str = ""
    state: str = "Absent"
    address: str = ""
    provider: str = ""
    reason: str = ""
    message: str = ""
    generation: int = 0
    told: str = ""


async def want(store: Store, run: RunRef, call_id: str, *, now: datetime) -> SandboxRecord:
    """The Ready record; or marks the want, once until it is answered, and returns the record, then Starting.

    A want after a Lost or Failed sandbox is a new one. Raises LogClosed on a finished run.
    """
    event = draft("sandbox.requested", {"call_id": call_id}, now=now)
    return (await _change(store, run, "want", [], event))[1]


async def mark_ready(
    store: Store, run: RunRef, epoch: int, record: SandboxRecord, *, ms: int, start: str, now: datetime
) -> None:
    """The operator's answer: this sandbox can be dialled. `start` is cold or warm, `ms` the time from the want.

    Logged once per name; a sandbox already marked lost stays lost.
    """
    data = {"name": record.name, "provider": record.provider, "start": start, "ms": ms}
    arguments: list[str | int] = [epoch, record.name, record.address, record.provider, record.generation]
    await _change(store, run, "ready", arguments, _told(run, "sandbox.ready", data, now))


async def mark_lost(
    store: Store,
    run: RunRef,
    epoch: int,
    name: str,
    reason: str,
    message: str,
    *,
    now: datetime,
    state: str = "Lost",
    generation: int = 0,
) -> bool:
    """The sandbox died (Lost) or could not start (Failed): answers a pending want. True the first time for a name.

    `generation` is the one that it was named by; 0 for one that the record knows.
    """
    event = _told(run, "sandbox.lost", {"name": name, "reason": reason, "message": message}, now)
    changed, _ = await _change(store, run, "lost", [epoch, name, generation, state, reason, message], event, "operator")
    return changed


async def give_up(store: Store, run: RunRef, epoch: int, name: str, message: str, *, now: datetime) -> bool:
    """The gateway's word that the sandbox is of no use, though it may be alive: Lost, for the reason Unresponsive.

    Whoever runs it ends it, and starts the next one when that is wanted. True the first time for a name. Raises Fenced.
    """
    event = _told(run, "sandbox.lost", {"name": name, "reason": UNRESPONSIVE, "message": message}, now)
    changed, _ = await _change(store, run, "lost", [epoch, name, 0, "Lost", UNRESPONSIVE, message], event, "gateway")
    return changed


async def mark_suspended(store: Store, run: RunRef, epoch: int, name: str, *, now: datetime) -> None:
    """The sandbox is put away while the run sleeps, and its workspace kept; logged once per name."""
    await _change(store, run, "suspended", [epoch, name], _told(run, "sandbox.suspended", {"name": name}, now))


async def mark_deleted(store: Store, run: RunRef, epoch: int, name: str, *, now: datetime) -> None:
    """The sandbox was released on purpose; logged once per name, not at all after the end of the run."""
    await _change(store, run, "deleted", [epoch, name], _told(run, "sandbox.deleted", {"name": name}, now))


async def read(store: Store, run: RunRef) -> SandboxRecord:
    """The record as it stands."""
    key = run.keys.sandbox
    return record_of(await store.call(lambda: store.client.execute_command("HMGET", key, *RECORD_FIELDS)))


def _told(run: RunRef, kind: str, data: Mapping[str, Any], now: datetime) -> Draft:
    """What becomes of a sandbox, told again under the same id when the store has lost it."""
    return draft(kind, data, now=now, event_id=lasting_id(run, f"{kind} {data['name']}"))


async def _change(
    store: Store, run: RunRef, verb: str, arguments: Sequence[str | int], event: Draft, *more: str
) -> tuple[bool, SandboxRecord]:
    keys = run.keys
    event_arguments = await script_args(store, run, event)
    reply = await store.script(
        "sandbox", [keys.meta, keys.log, keys.sandbox], [keys.notify, verb, *arguments, *event_arguments, *more]
    )
    return bool(reply[0]), record_of(reply[1:])


def record_of(values: Sequence[Any]) -> SandboxRecord:
    name, state, address, provider, reason, message, generation, told = (
        value.decode() if value is not None else "" for value in values
    )
    return SandboxRecord(name, state or "Absent", address, provider, reason, message, int(generation or 0), told)
