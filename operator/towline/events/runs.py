"""What the operator (on a laptop: the launcher) writes: a run's beginning, its own events, cancellation and the end.

Called by whoever plays the operator. Its writes carry an epoch and raise it; each happens once per guard.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from towline.events.blobs import script_args
from towline.events.event import Draft, Event, RunRef, draft, lasting_id
from towline.events.store import Store
from towline.events.totals import NOTHING
from towline.naming import feed_key

_FEED_ENTRIES = 100_000
"""Approximate length at which a namespace's feed is trimmed; an indexer that falls further behind sees a Gap."""


async def create(store: Store, run: RunRef, spec_json: bytes, *, now: datetime) -> None:
    """Stores the snapshot, the name and `run.started`, under epoch 1. Repeatable: the first call decides."""
    digest = "sha256:" + hashlib.sha256(spec_json).hexdigest()
    data = {"name": run.name, "namespace": run.namespace, "digest": digest}
    started = draft("run.started", data, now=now, event_id=lasting_id(run, "run.started"))
    keys = run.keys
    event = await script_args(store, run, started)
    await store.script("create", [keys.meta, keys.log, keys.spec], [keys.notify, run.name, spec_json, *event])


async def append_once(store: Store, run: RunRef, epoch: int, drafts: Sequence[Draft], guard: str) -> list[int]:
    """Appends the drafts as src operator, once per guard; their seqs, or those of the first time.

    Raises Fenced when the run is at a higher epoch, LogClosed when it has ended.
    """
    keys = run.keys
    events = [part for one in drafts for part in await script_args(store, run, one)]
    arguments = [keys.notify, "operator", epoch, "", 0, 0, 0, "", guard, *NOTHING.values(), *events]
    first, last, _ = await store.script("append", [keys.meta, keys.log, keys.inbox], arguments)
    return list(range(int(first), int(last) + 1))


async def request_cancel(store: Store, run: RunRef, reason: str) -> bool:
    """Asks for the end of the run; False when it has ended already. The first reason stays.

    Raises Invalid for a run that does not exist.
    """
    keys = run.keys
    return bool(await store.script("cancel", [keys.meta, keys.log], [keys.notify, reason]))


async def finish(store: Store, run: RunRef, epoch: int, terminal: Draft) -> int:
    """The operator's terminal event: settles open calls as cancelled and closes the log; its seq.

    A repeat with the same draft returns the same seq; raises LogClosed when another event closed the log.
    """
    keys = run.keys
    event = await script_args(store, run, terminal)
    arguments = [keys.notify, "operator", epoch, "", 0, 0, 0, "", "cancelled", "", *event]
    reply = await store.script("finish", [keys.meta, keys.log, keys.calls], arguments)
    return int(reply[1])


async def tell_phase(store: Store, run: RunRef, epoch: int, phase: str, reason: str, *, now: datetime) -> bool:
    """Logs `run.status` when the phase is another than the last one told; whether it was. A run begins as Pending."""
    event = await script_args(store, run, draft("run.status", {"phase": phase, "reason": reason}, now=now))
    keys = run.keys
    return bool(await store.script("phase", [keys.meta, keys.log], [keys.notify, epoch, phase, *event]))


async def publish_feed(store: Store, event: Event) -> None:
    """Copies an event of the log to its namespace's feed: at least once, readers dedupe by run and id."""
    fields: list[str | bytes | int] = ["run", event.run.uid, "name", event.run.name, "seq", event.seq]
    fields += ["id", event.id, "type", event.type, "time", event.time, "src", event.src, "epoch", event.epoch]
    fields += ["turn", "" if event.turn is None else event.turn, "data", event.data]
    key = feed_key(event.run.namespace)
    await store.call(lambda: store.client.execute_command("XADD", key, "MAXLEN", "~", _FEED_ENTRIES, "*", *fields))


async def trim(store: Store, run: RunRef, below: int, *, above: int) -> int:
    """Lets go of the events with a seq less than `below`, if the log has more than `above` entries; how many went.

    Readers below get Gap; no consumer group holds anything up. Repeatable.
    """
    key = run.keys.log
    if below <= 1 or await store.call(lambda: store.client.execute_command("XLEN", key)) <= above:
        return 0
    async for event_id in _blob_ids(store, run, f"({below}-0"):
        blob = run.keys.blob(event_id)
        await store.call(lambda key=blob: store.client.execute_command("DEL", key))  # type: ignore[misc]
    return int(await store.call(lambda: store.client.execute_command("XTRIM", key, "MINID", f"{below}-0")))


async def expire(store: Store, run: RunRef, seconds: int) -> None:
    """Everything that the store holds of a run goes `seconds` from now; until then it can be read. Repeatable."""
    keys = run.keys
    blobs = [keys.blob(event_id) async for event_id in _blob_ids(store, run)]
    for key in (*blobs, keys.live, keys.calls, keys.inbox, keys.sandbox, keys.spec, keys.log, keys.meta):
        await store.call(lambda key=key: store.client.execute_command("EXPIRE", key, seconds))  # type: ignore[misc]


async def _blob_ids(store: Store, run: RunRef, end: str = "+") -> AsyncIterator[str]:
    """The events whose data is kept beside the log, up to `end`."""
    key, start = run.keys.log, "-"
    while True:
        entries = await store.call(
            lambda start=start: store.client.execute_command("XRANGE", key, start, end, "COUNT", 500)  # type: ignore[misc]
        )
        for _, fields in entries:
            if fields[b"data"].startswith(b'{"blob":'):
                yield fields[b"id"].decode()
        if len(entries) < 500:
            return
        start = "(" + entries[-1][0].decode()


async def load_spec(store: Store, run: RunRef) -> bytes | None:
    """The snapshot, byte for byte; None for a run that was never created."""
    key = run.keys.spec
    snapshot: bytes | None = await store.call(lambda: store.client.execute_command("GET", key))
    return snapshot
