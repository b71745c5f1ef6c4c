"""The writing side of a process: one append in flight, repeated until it is certain, never cancelled half-way.

Called by the harness (and by tests that play one). The operator writes through `runs`, the gateway through `calls`.
It keeps what the store may still lose, and puts it back when it did.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from towline.clock import rfc3339, utc_now
from towline.errors import StopWriting, StoreUnavailable, TowlineError
from towline.events.adopted import Adopted
from towline.events.blobs import script_args
from towline.events.durable import Durability
from towline.events.event import NOTHING_SEEN, Draft, RunRef, Seen, to_json
from towline.events.store import Store
from towline.events.totals import NOTHING, Totals

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 15.0
"""How long an append is repeated before StoreUnavailable: a Sentinel failover refused writes for 4.4 s, measured."""

_KEPT_DRAFTS = 8192
_KEPT_BYTES = 16 * 1024 * 1024
"""What is kept to be put back if the store loses its tail, until the store says that it is safe there."""

_CONFIRM_SECONDS = 1.0
"""How often the store is asked for that, while something is kept."""

_ALONE_SECONDS = 60.0
"""How much longer it is kept while no replica was ever seen: one that is cut off may be promoted all the same."""


@dataclass(slots=True)
class _Batch:
    drafts: tuple[Draft, ...]
    totals: Totals
    first: int = 0
    last: int = 0

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
        self._seen = NOTHING_SEEN
        self._taken: list[Adopted] = []
        """Calls adopted since the last certain append: the store has not been asked yet whether it still has them."""
        self._kept: deque[_Batch | Adopted] = deque()
        self._kept_drafts = self._kept_bytes = self._let_go = 0
        self._unsure: _Batch | None = None
        self._durability = Durability(store, run, f"p:{src}" if src == "harness" else f"p:{src}:{nonce}", nonce)
        self._confirming: asyncio.Task[None] | None = None
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

    @property
    def seen(self) -> Seen:
        """Up to where the log is known to be there."""
        return self._seen

    def adopt(self, call: Adopted) -> None:
        """Answer for a call's events as for one's own: the gateway appended them, and its result is taken over."""
        if call.last > self._seen.seq:
            self._seen = self._seen._replace(seq=call.last, event_id=call.result_id)
        # A call and its cancellation are two requests with one result.
        if not any(isinstance(one, Adopted) and one.call_id == call.call_id for one in self._kept):
            self._taken.append(call)
            self._keep(call)

    async def flush(self) -> None:
        """Put back at once what the store has lost, if anything. Raises as `append` does."""
        await self._shielded(self._flush())

    async def _flush(self) -> None:
        async with self._lock:
            await self._restore()

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
                await self._restore()

    async def _send(self, batch: _Batch) -> None:
        """Makes `batch` certain, after what the store turns out to have lost."""
        self._unsure = batch
        keys = self._run.keys
        try:
            while True:
                events = [part for draft in batch.drafts for part in await self._args(draft)]
                checked = len(self._taken)
                arguments = [*self._producer(), "", *batch.totals.values(), *events]
                reply = await self._store.script(
                    "append", [keys.meta, keys.log, keys.inbox], arguments, patience_seconds=self._patience
                )
                if reply[0] != b"LOST":
                    break
                await self._restore()
        except StoreUnavailable:
            raise
        except TowlineError:
            self._unsure = None  # refused, so it is certainly not in the log
            raise
        batch.first, batch.last, incarnation = int(reply[0]), int(reply[1]), int(reply[2])
        # A call may have been adopted while the reply was on its way.
        del self._taken[:checked]
        if incarnation != self._seen.incarnation or batch.last > self._seen.seq:
            self._seen = Seen(batch.last, incarnation, batch.drafts[-1].id)
        self._n += 1
        self._unsure = None
        self._keep(batch)

    async def _args(self, draft: Draft) -> tuple[str | bytes, ...]:
        return await script_args(self._store, self._run, draft, self._patience)

    def _producer(self, n: int | None = None) -> list[str | bytes | int]:
        return [
            self._run.keys.notify,
            self._src,
            self._epoch,
            self._nonce,
            self._n + 1 if n is None else n,
            self._seen.seq,
            self._seen.incarnation,
            " ".join(f"{call.last} {call.result_id}" for call in self._taken),
        ]

    async def _restore(self) -> None:
        """Put back what of the kept is gone from the log; nothing when nothing was lost."""
        keys, kept = self._run.keys, list(self._kept)
        items: list[str | bytes | int] = []
        for one in kept:
            if isinstance(one, Adopted):
                items += ["call", one.first, len(one.drafts), one.last, one.call_id, to_json(one.name), one.args_hash]
            else:
                items += ["append", one.first, len(one.drafts), *one.totals.values()]
            items += [part for draft in one.drafts for part in await self._args(draft)]
        lowest = min((one.first for one in kept), default=0)
        checked = len(self._taken)
        arguments = [*self._producer(self._n), rfc3339(utc_now()), lowest, *items]
        names = [keys.meta, keys.log, keys.calls, keys.inbox]
        reply = await self._store.script("restore", names, arguments, patience_seconds=self._patience)
        restored, head, incarnation, *seqs = (int(value) for value in reply)
        del self._taken[:checked]
        if incarnation == self._seen.incarnation:
            return
        for one, first, last in zip(kept, seqs[::2], seqs[1::2], strict=True):
            if first:
                one.first, one.last = first, last
        self._seen = Seen(head, incarnation)
        fields = {"run": self._run.uid, "incarnation": incarnation, "restored": restored}
        log.warning("the store lost a tail", extra={"fields": fields})

    def _keep(self, one: "_Batch | Adopted") -> None:
        self._kept.append(one)
        self._kept_drafts += len(one.drafts)
        self._kept_bytes += one.bytes
        while len(self._kept) > 1 and (self._kept_drafts > _KEPT_DRAFTS or self._kept_bytes > _KEPT_BYTES):
            self._drop_first()
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm(), name="confirming appends")

    def _drop_first(self) -> None:
        dropped = self._kept.popleft()
        self._let_go += 1
        self._kept_drafts -= len(dropped.drafts)
        self._kept_bytes -= dropped.bytes

    async def _confirm(self) -> None:
        """Let go of what the store has in safety, until nothing is kept; find a loss also while nothing is appended."""
        clock = asyncio.get_running_loop().time
        marks: deque[tuple[float, int]] = deque()  # when so many of all that was ever kept were there
        while self._kept:
            n, taken = self._n, list(self._taken)
            marks.append((clock(), self._let_go + len(self._kept)))
            await asyncio.sleep(_CONFIRM_SECONDS)
            try:
                standing = await self._durability.ask([(call.last, call.result_id) for call in taken])
                if standing.n < n or not standing.whole:
                    await self.flush()
                elif standing.durable:
                    ripe = clock() - (0.0 if standing.replicated else _ALONE_SECONDS)
                    while marks and marks[0][0] <= ripe:
                        _, until = marks.popleft()
                        while self._let_go < until:
                            self._drop_first()
            except StopWriting:
                return
            except TowlineError as fault:
                log.debug("appends not confirmed", extra={"fields": {"run": self._run.uid, "cause": str(fault)}})
