"""The writing side of a process: one append in flight, repeated until it is certain, never cancelled half-way.

Called by the harness (and by tests that play one). The operator writes through `runs`, the gateway through `calls`.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from towline.errors import StoreUnavailable, TowlineError
from towline.events.blobs import script_args
from towline.events.event import Draft, RunRef
from towline.events.store import Store
from towline.events.totals import NOTHING, Totals

T = TypeVar("T")

PATIENCE_SECONDS = 15.0
"""How long an append is repeated before StoreUnavailable: a Sentinel failover refused writes for 4.4 s, measured."""

_KEPT_DRAFTS = 512
_KEPT_BYTES = 16 * 1024 * 1024
"""What is kept to be appended again if the store loses its tail: about a second of asynchronous replication."""


@dataclass(slots=True)
class _Batch:
    drafts: tuple[Draft, ...]
    totals: Totals
    first: int = 0
    """Its first seq, or a lower bound of it after a loss."""

    @property
    def ids(self) -> list[str]:
        return [draft.id for draft in self.drafts]

    @property
    def bytes(self) -> int:
        return sum(len(draft.data) for draft in self.drafts)


class Appender:
    """Appends to one run as one producer, named by (epoch, nonce).

    Raises Fenced or LogClosed: stop writing. Raises StoreUnavailable after bounded repeats: the batch may or may not be
    in the log; the next append settles it first, and an append of the same drafts is the same append.
    """

    def __init__(
        self,
        store: Store,
        run: RunRef,
        *,
        src: str,
        epoch: int,
        nonce: str,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._store, self._run = store, run
        self._src, self._epoch, self._nonce = src, epoch, nonce
        self._patience = patience_seconds
        self._lock = asyncio.Lock()
        self._n = 0
        """Number of this process's last append that is certain."""
        self._acknowledged = 0
        self._incarnation = 0
        self._kept: deque[_Batch] = deque()
        self._kept_drafts = self._kept_bytes = 0
        self._unsure: _Batch | None = None
        self._again: list[_Batch] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def append(self, drafts: Sequence[Draft], totals: Totals = NOTHING) -> list[int]:
        """Appends the drafts as one; their seqs. Cancelling the caller does not cancel the append."""
        if not drafts:
            return []
        return await self._shielded(self._append(tuple(drafts), totals))

    async def finish(
        self, terminal: Draft, *, settle_open_as: str = "cancelled", seen_prompt: int | None = None
    ) -> int:
        """Settles open calls, appends the terminal event and closes the log; a repeat returns the same seq.

        Raises PromptsUnread, and does nothing, when the inbox has prompts behind number `seen_prompt`.
        """
        return await self._shielded(self._finish(terminal, settle_open_as, seen_prompt))

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: a cancelled caller no longer waits for it

    async def _append(self, drafts: tuple[Draft, ...], totals: Totals) -> list[int]:
        async with self._lock:
            batch = _Batch(drafts, totals)
            if self._unsure is not None and self._unsure.ids != batch.ids:
                await self._send(self._unsure)
            await self._send(batch)
            return list(range(batch.first, batch.first + len(drafts)))

    async def _finish(self, terminal: Draft, settle_open_as: str, seen_prompt: int | None) -> int:
        async with self._lock:
            if self._unsure is not None:
                await self._send(self._unsure)
            event = await self._args(terminal)
            keys = self._run.keys
            while True:
                seen = "" if seen_prompt is None else seen_prompt
                arguments = [*self._producer(), settle_open_as, seen, *event]
                reply = await self._store.script(
                    "finish", [keys.meta, keys.log, keys.calls], arguments, patience_seconds=self._patience
                )
                if reply[0] != b"LOST":
                    return int(reply[1])
                await self._take_over(reply)
                if self._again:
                    await self._send(_Batch((), NOTHING))

    async def _send(self, batch: _Batch) -> None:
        """Makes `batch` certain, together with what the store turned out to have lost.

        What is sent as the n-th append must not change while it is unsure, so `_again` stays until it is certain too.
        """
        self._unsure = batch
        keys = self._run.keys
        try:
            while True:
                drafts = [draft for lost in self._again for draft in lost.drafts] + list(batch.drafts)
                totals = sum((lost.totals for lost in self._again), batch.totals)
                events = [part for draft in drafts for part in await self._args(draft)]
                arguments = [*self._producer(), "", *totals.values(), *events]
                reply = await self._store.script(
                    "append", [keys.meta, keys.log], arguments, patience_seconds=self._patience
                )
                if reply[0] != b"LOST":
                    break
                await self._take_over(reply)
        except StoreUnavailable:
            raise
        except TowlineError:
            self._unsure = None  # refused, so it is certainly not in the log
            raise
        self._acknowledged, self._incarnation = int(reply[1]), int(reply[2])
        self._n += 1
        self._unsure = None
        self._again = []
        batch.first = self._acknowledged - len(batch.drafts) + 1
        self._keep(batch)

    async def _args(self, draft: Draft) -> tuple[str | bytes, ...]:
        return await script_args(self._store, self._run, draft, self._patience)

    def _producer(self) -> list[str | bytes | int]:
        return [
            self._run.keys.notify,
            self._src,
            self._epoch,
            self._nonce,
            self._n + 1,
            self._acknowledged,
            self._incarnation,
        ]

    async def _take_over(self, reply: list[Any]) -> None:
        """After a loss: which of the kept batches are gone from the log, and where the log stands now.

        A batch is one script, so it is in the log as a whole or not at all.
        """
        head, incarnation = int(reply[1]), int(reply[2])
        self._again = []
        if self._kept:
            key, lowest = self._run.keys.log, min(batch.first for batch in self._kept)
            entries = await self._store.call(
                lambda: self._store.client.execute_command("XRANGE", key, f"{lowest}-0", "+"),
                patience_seconds=self._patience,
            )
            present = {fields[b"id"].decode() for _, fields in entries}
            self._again = [batch for batch in self._kept if batch.drafts[0].id not in present]
            for batch in self._again:
                batch.first = min(batch.first, head + 1)
        self._acknowledged, self._incarnation = head, incarnation

    def _keep(self, batch: _Batch) -> None:
        if not batch.drafts:
            return
        self._kept.append(batch)
        self._kept_drafts += len(batch.drafts)
        self._kept_bytes += batch.bytes
        while len(self._kept) > 1 and (self._kept_drafts > _KEPT_DRAFTS or self._kept_bytes > _KEPT_BYTES):
            dropped = self._kept.popleft()
            self._kept_drafts -= len(dropped.drafts)
            self._kept_bytes -= dropped.bytes
