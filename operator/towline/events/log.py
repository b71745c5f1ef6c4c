"""The reading side of one run: its events, and the state that stands in `meta`.

Called by whoever folds, follows or shows a run. It writes nothing.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from towline.errors import Gap
from towline.events.appender import Appender as Appender  # the two sides of a log are found in one place
from towline.events.event import Event, RunRef
from towline.events.store import Store
from towline.events.totals import FIELDS, NOTHING, Totals

_BLOB = re.compile(rb'\{"blob":"(ev_[0-9a-f]{20})","bytes":\d+,"sha256":"([0-9a-f]{64})"\}')
_PAGE_BLOB_BYTES = 32 * 1024 * 1024
"""A page ends early once it holds this much of large data, so that reading a long run needs bounded memory."""

TRIMMED = "trimmed"

META_FIELDS = (
    *("epoch", "head", "incarnation", "lost_head", "closed", "cancel", "want", "name", "inbox_head"),
    *("waiting", "compacted", "progress", "phase", "unfed", *FIELDS),
)


@dataclass(frozen=True, slots=True)
class RunState:
    """What `meta` says of a run. `closed` is the terminal event's type."""

    epoch: int = 0
    head: int = 0
    incarnation: int = 1
    lost_head: int = 0
    """The last seq that survived the loss which began this incarnation."""
    closed: str | None = None
    cancel: str | None = None
    want: str = ""
    name: str = ""
    inbox_head: int = 0
    """Number of the last prompt posted."""
    waiting: str = ""
    """When the run came to rest for want of a prompt; empty while a turn runs."""
    compacted: int = 0
    """Seq of the last `context.compacted`: a history begins there; 0 for at the first event."""
    progress: int = 0
    """Seq of the last event that brought the run further; a harness that merely starts is none."""
    phase: str = ""
    """The phase that `run.status` told last; empty before the first, when a run is Pending."""
    unfed: tuple[int, ...] = ()
    """Seqs of the lifecycle events that the namespace's feed does not have yet."""
    totals: Totals = NOTHING

    @property
    def absent(self) -> bool:
        """No such run, or nothing was ever written for it."""
        return self.epoch == 0 and self.head == 0 and not self.name

    @property
    def unread(self) -> int:
        """How many prompts wait in the inbox."""
        return max(self.inbox_head - self.totals.prompts, 0)


class EventLog:
    """One run's log, read. Every method reads the store anew."""

    def __init__(self, store: Store, run: RunRef) -> None:
        self.store = store
        self.run = run

    async def read(self, from_seq: int = 1, count: int = 1000) -> list[Event]:
        """Up to `count` events from `from_seq` on, without a hole; fewer do not mean the end, none does.

        Raises Gap when `from_seq` is below the first kept entry.
        """
        events, _ = await self.page(from_seq, count)
        return events

    async def all(self) -> list[Event]:
        """Every event of the run, from seq 1."""
        return await self.since(1)

    async def since(self, from_seq: int) -> list[Event]:
        """Every event from `from_seq` to the head."""
        events: list[Event] = []
        more = True
        while more:
            page, more = await self.page(from_seq + len(events), 1000)
            events += page
        return events

    async def page(self, from_seq: int, count: int) -> tuple[list[Event], bool]:
        """Like `read`, and whether there may be more behind it."""
        run = await self.named()
        key, start = run.keys.log, f"{from_seq}-0"
        entries = await self.store.call(
            lambda: self.store.client.execute_command("XRANGE", key, start, "+", "COUNT", count)
        )
        if not entries:
            head = int(
                await self.store.call(lambda: self.store.client.execute_command("HGET", run.keys.meta, "head")) or 0
            )
            if head >= from_seq:
                # Between our two reads a writer may have appended; only an entry that is still missing was trimmed.
                first = await self.first_kept()
                if first is None or first > from_seq:
                    raise Gap(from_seq, first or head + 1)
                return [], True
            return [], False
        events: list[Event] = []
        blob_bytes = 0
        for expected, (entry_id, fields) in enumerate(entries, start=from_seq):
            event = event_of(run, int(entry_id[:-2]), fields)
            if event.seq != expected:
                if events:
                    return events, True  # the hole is the next page's Gap
                raise Gap(from_seq, event.seq)
            if event.data.startswith(b'{"blob":'):
                try:
                    event = await resolve(self.store, event)
                except Gap:
                    if events:
                        return events, True  # as with a hole
                    raise
                blob_bytes += len(event.data)
            events.append(event)
            if blob_bytes > _PAGE_BLOB_BYTES:
                return events, True
        return events, len(entries) == count

    async def ids(self, first: int, last: int) -> dict[int, str]:
        """Ids of the events from `first` to `last`: TRIMMED below the first kept entry, "" beyond the head."""
        key = self.run.keys.log
        entries = await self.store.call(
            lambda: self.store.client.execute_command("XRANGE", key, f"{first}-0", f"{last}-0")
        )
        there = {int(entry_id[:-2]): fields[b"id"].decode() for entry_id, fields in entries}
        missing = [seq for seq in range(first, last + 1) if seq not in there]
        if missing:
            kept = await self.first_kept() or (await self.state()).head + 1
            there |= {seq: TRIMMED if seq < kept else "" for seq in missing}
        return there

    async def state(self) -> RunState:
        """The state in one read; a run that does not exist has `absent` true."""
        key = self.run.keys.meta
        values = await self.store.call(lambda: self.store.client.execute_command("HMGET", key, *META_FIELDS))
        return state_of(values)

    async def first_kept(self) -> int | None:
        """Seq of the first event that the log still has; None when it has none."""
        key = self.run.keys.log
        entries = await self.store.call(lambda: self.store.client.execute_command("XRANGE", key, "-", "+", "COUNT", 1))
        return int(entries[0][0][:-2]) if entries else None

    async def named(self) -> RunRef:
        """The run with its name, which the envelope carries; asked for once when the caller did not know it."""
        if not self.run.name:
            key = self.run.keys.meta
            name = await self.store.call(lambda: self.store.client.execute_command("HGET", key, "name"))
            self.run = replace(self.run, name=(name or b"").decode())
        return self.run


def state_of(values: Sequence[bytes | None]) -> RunState:
    """The state from the values of the meta fields, in their order."""
    epoch, head, incarnation, lost_head, closed, cancel, want, name, inbox_head, *rest = values
    waiting, compacted, progress, phase, unfed, *sums = rest
    return RunState(
        epoch=int(epoch or 0),
        head=int(head or 0),
        incarnation=int(incarnation or 1),
        lost_head=int(lost_head or 0),
        closed=closed.decode() if closed else None,
        cancel=cancel.decode() if cancel is not None else None,
        want=(want or b"").decode(),
        name=(name or b"").decode(),
        inbox_head=int(inbox_head or 0),
        waiting=(waiting or b"").decode(),
        compacted=int(compacted or 0),
        progress=int(progress or 0),
        phase=(phase or b"").decode(),
        unfed=tuple(int(seq) for seq in (unfed or b"").split()),
        totals=Totals(*(int(value or 0) for value in sums)),
    )


def event_of(run: RunRef, seq: int, fields: dict[bytes, Any]) -> Event:
    """An entry of a log or feed as an event; large data still a reference."""
    turn = fields[b"turn"]
    return Event(
        seq,
        fields[b"id"].decode(),
        fields[b"type"].decode(),
        run,
        int(turn) if turn else None,
        fields[b"time"].decode(),
        fields[b"src"].decode(),
        int(fields[b"epoch"]),
        fields[b"data"],
    )


async def resolve(store: Store, event: Event) -> Event:
    """The event with its large data in place; raises Gap when the data is gone or is not what was written."""
    reference = _BLOB.fullmatch(event.data)
    if reference is None or reference[1].decode() != event.id:
        return event
    key = event.run.keys.blob(event.id)
    data: bytes | None = await store.call(lambda: store.client.execute_command("GET", key))
    if data is None or hashlib.sha256(data).hexdigest() != reference[2].decode():
        raise Gap(event.seq, event.seq + 1)
    return replace(event, data=data)
