"""Consumer groups: every event of a run, or of a namespace's feed, at least once, shared among consumers.

Called by indexers, archivers and dashboards. An event may come twice (a consumer died before its ack, a feed was
written again): dedupe by run and Event.id, which never change.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from towline.errors import Gap, Invalid, StoreUnavailable
from towline.events.event import Event, RunRef
from towline.events.log import EventLog, event_of, resolve
from towline.events.store import Store

_Entry = tuple[bytes, dict[bytes, bytes]]


class _Forgotten(Exception):
    """The store does not know the group, or the stream: a failover lost them."""


class Group:
    """One consumer of a group, on a run's log (a RunRef) or on a feed (its key), from the first entry on.

    The name of a consumer is its identity: a restarted one continues with what it had not acknowledged.
    """

    def __init__(self, store: Store, run_or_feed_key: RunRef | str, group: str, consumer: str) -> None:
        self._store, self._group, self._consumer = store, group, consumer
        self._run = run_or_feed_key if isinstance(run_or_feed_key, RunRef) else None
        self._key = run_or_feed_key if isinstance(run_or_feed_key, str) else run_or_feed_key.keys.log
        self._entry_ids: dict[tuple[str, str], list[bytes]] = {}
        """The unacknowledged entries of each event of a feed, where entry ids are times."""

    async def messages(
        self, *, block_ms: int = 1000, count: int = 100, claim_idle_ms: int = 60000
    ) -> AsyncIterator[Event]:
        """Events without end: first this consumer's own unacknowledged ones, then those of consumers that were idle for
        `claim_idle_ms`, then new ones (and now and then the idle ones again).

        Raises Gap, once, for entries that were trimmed before they were handled; call again to go on behind it.
        """
        block_ms = min(
            block_ms, int(self._store.timeout_seconds * 500)
        )  # a reply must come before the socket times out
        while True:
            try:
                await self._begin()
                async with aclosing(self._round(block_ms, count, claim_idle_ms)) as events:
                    async for event in events:
                        yield event
            except _Forgotten:
                continue

    async def _round(self, block_ms: int, count: int, claim_idle_ms: int) -> AsyncGenerator[Event, None]:
        """What `messages` yields, until the store was away."""
        clock = asyncio.get_running_loop().time
        position = b"0"
        while entries := await self._read(position, count):
            position = entries[-1][0]
            async for event in self._events(entries):
                yield event
        claim_at = clock()
        while True:
            if clock() >= claim_at:
                cursor = b"0-0"
                while cursor:
                    cursor, entries = await self._claim(cursor, count, claim_idle_ms)
                    async for event in self._events(entries):
                        yield event
                claim_at = clock() + claim_idle_ms / 1000
            await self._check_hole()
            try:
                entries = await self._read(b">", count, block_ms)
            except StoreUnavailable:
                # The server may have delivered what we did not receive: it is among our own unacknowledged ones.
                await self._ask("PING")
                return
            async for event in self._events(entries):
                yield event

    async def ack(self, *events: Event) -> None:
        """Handled: they will not come again."""
        if self._run is not None:
            await self._ack([b"%d-0" % event.seq for event in events])
        else:
            ids = [self._entry_ids.pop((event.run.uid, event.id), []) for event in events]
            await self._ack([entry_id for some in ids for entry_id in some])

    async def _begin(self) -> None:
        """Creates the group, once. A new reader of a feed has missed nothing; a new reader of a log wants it whole."""
        read: int = 0
        if self._run is not None:
            self._run = await EventLog(self._store, self._run).named()
        else:
            read = (await self._trimmed())[0]
        try:
            await self._ask("XGROUP", "CREATE", self._key, self._group, "0", "MKSTREAM", "ENTRIESREAD", read)
        except Invalid as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _read(self, position: bytes, count: int, block_ms: int | None = None) -> list[_Entry]:
        block: list[str | int] = [] if block_ms is None else ["BLOCK", block_ms]
        reply: dict[bytes, list[_Entry]] = await self._ask(
            *("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count, *block),
            *("STREAMS", self._key, position),
            patience_seconds=None if block_ms is None else 0,
        )
        return next(iter(reply.values()), [])

    async def _claim(self, cursor: bytes, count: int, idle_ms: int) -> tuple[bytes, list[_Entry]]:
        """A step of XAUTOCLAIM; the next cursor is empty at the end."""
        following, entries, *deleted = await self._ask(
            "XAUTOCLAIM", self._key, self._group, self._consumer, idle_ms, cursor, "COUNT", count
        )
        if deleted and deleted[0]:
            raise await self._gap(deleted[0])  # the server has dropped them from the pending ones
        return b"" if following == b"0-0" else following, entries

    async def _events(self, entries: Sequence[_Entry]) -> AsyncIterator[Event]:
        gone = [entry_id for entry_id, fields in entries if not fields]
        for entry_id, fields in entries:
            if not fields:
                gap = await self._gap(gone)
                await self._ack(gone)
                raise gap
            event = self._event(entry_id, fields)
            try:
                event = await resolve(self._store, event)
            except Gap:
                await self._ack([entry_id])
                raise
            yield event

    def _event(self, entry_id: bytes, fields: dict[bytes, bytes]) -> Event:
        if self._run is not None:
            return event_of(self._run, _number(entry_id), fields)
        namespace = self._key.split(":")[1]
        run = RunRef(namespace, fields[b"run"].decode(), fields[b"name"].decode())
        event = event_of(run, int(fields[b"seq"]), fields)
        known = self._entry_ids.setdefault((run.uid, event.id), [])
        if entry_id not in known:
            known.append(entry_id)
        return event

    async def _check_hole(self) -> None:
        """Redis goes on silently behind entries that were trimmed unread; this finds out, once for the group."""
        groups = [dict(zip(g[::2], g[1::2], strict=True)) for g in await self._ask("XINFO", "GROUPS", self._key)]
        group = next((each for each in groups if each[b"name"] == self._group.encode()), None)
        if group is None:
            raise _Forgotten
        delivered = group[b"last-delivered-id"]
        trimmed, first = await self._trimmed()
        if self._run is not None:
            hole = first is not None and _number(first) > _number(delivered) + 1
        else:
            hole = trimmed > int(group[b"entries-read"] or 0)
        if not hole:
            return
        first = first or b"%d-0" % (_number(delivered) + 2)
        before = b"%d-0" % (_number(first) - 1)
        if self._run is None and not first.endswith(b"-0"):
            milliseconds, _, counter = first.partition(b"-")
            before = b"%b-%d" % (milliseconds, int(counter) - 1)
        await self._ask("XGROUP", "SETID", self._key, self._group, before, "ENTRIESREAD", trimmed)
        raise Gap(_number(delivered) + 1, _number(first))

    async def _trimmed(self) -> tuple[int, bytes | None]:
        """How many entries were ever removed from the stream, and the id of the first that is left."""
        if not await self._ask("EXISTS", self._key):
            return 0, None
        reply = await self._ask("XINFO", "STREAM", self._key)
        info: dict[bytes, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
        first = info[b"first-entry"]
        return int(info[b"entries-added"]) - int(info[b"length"]), first[0] if first else None

    async def _gap(self, gone: Sequence[bytes]) -> Gap:
        lowest = min(_number(entry_id) for entry_id in gone)
        _, first = await self._trimmed()
        return Gap(lowest, _number(first) if first else max(_number(entry_id) for entry_id in gone) + 1)

    async def _ack(self, entry_ids: Sequence[bytes]) -> None:
        if entry_ids:
            await self._ask("XACK", self._key, self._group, *entry_ids)

    async def _ask(self, *command: Any, patience_seconds: float | None = None) -> Any:
        """The reply to a command. Raises _Forgotten, and what `Store.call` raises."""
        try:
            return await self._store.call(
                lambda: self._store.client.execute_command(*command), patience_seconds=patience_seconds
            )
        except Invalid as error:
            if "NOGROUP" in str(error) or "no such key" in str(error):
                raise _Forgotten from error
            raise


def _number(entry_id: bytes) -> int:
    """The seq in a log, the milliseconds in a feed."""
    return int(entry_id.partition(b"-")[0])
