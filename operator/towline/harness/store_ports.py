"""The real ports: event log, live stream, inbox and clock, as the loop wants them.

Made by `process.py` for one run and one epoch. The Tools port is in `tools.py`, the Model ports are in `models/`.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from towline import failpoints, inbox
from towline.clock import utc_now
from towline.errors import StoreUnavailable
from towline.events import live, runs
from towline.events.adopted import Adopted
from towline.events.appender import Appender
from towline.events.event import Draft, RunRef, Seen
from towline.events.notices import Watch
from towline.events.store import Store
from towline.events.totals import NOTHING, Totals
from towline.harness.deltas import LiveDeltas

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""A lost notice of a prompt, or one whose look into the inbox was broken off by the end of what was listened beside, is
made up for after this long, or before the loop's next step."""

PAGE = 32
"""Prompts read at once: each may have 256 KiB."""

TRIM_ABOVE = 20_000
"""Entries of a log beyond which a compaction lets go of what lies before the one before it."""


class LogSink:
    """The Sink port over the event log and its live stream, and what the gateway's client keeps of the log's tail."""

    def __init__(self, store: Store, run: RunRef, epoch: int, compacted: int) -> None:
        self._store, self._run, self._epoch = store, run, epoch
        self._compacted = compacted
        """Seq of the last compaction, at which a history begins; 0 when there was none."""
        self._appender = Appender(store, run, src="harness", epoch=epoch, nonce=secrets.token_hex(8))

    async def append(self, drafts: Sequence[Draft], totals: Totals = NOTHING) -> None:
        failpoints.hit("harness.append.before")
        seqs = await self._appender.append(drafts, totals)
        failpoints.hit("harness.append.after")
        for seq, each in zip(seqs, drafts, strict=True):
            log.debug("event appended", extra={"fields": {"type": each.type, "id": each.id}})
            if each.type == "context.compacted":
                await self._let_go(seq)

    async def _let_go(self, compacted: int) -> None:
        """Of a very long log only what lies behind the compaction before this one stays: two places to resume from."""
        try:
            dropped = await runs.trim(self._store, self._run, self._compacted, above=TRIM_ABOVE)
        except StoreUnavailable as fault:
            log.warning("log not trimmed", extra={"fields": {"cause": str(fault)}})  # the next compaction will
        else:
            fields = {"seq": compacted, "dropped": dropped}
            log.info("history compacted", extra={"fields": fields})
        self._compacted = compacted

    @property
    def seen(self) -> Seen:
        return self._appender.seen

    def adopt(self, call: Adopted) -> None:
        self._appender.adopt(call)

    async def flush(self) -> None:
        await self._appender.flush()

    async def finish(self, terminal: Draft, *, seen_prompt: int | None = None) -> None:
        failpoints.hit("harness.finish.before")
        seq = await self._appender.finish(terminal, seen_prompt=seen_prompt)
        failpoints.hit("harness.finish.after")
        log.info("run finished", extra={"fields": {"type": terminal.type, "seq": seq}})

    def deltas(self, message_id: str) -> LiveDeltas:
        async def push(delta: Mapping[str, Any]) -> None:
            failpoints.hit("harness.delta.before")
            await live.push_delta(self._store, self._run, epoch=self._epoch, delta=delta)

        return LiveDeltas(push, message_id)

    async def recovered_text(self, message_id: str) -> str:
        text, after = "", "0-0"
        while deltas := await live.read_deltas(self._store, self._run, after):
            after = deltas[-1][0]
            for _, delta in deltas:
                ours = delta.get("message_id") == message_id and delta["kind"] == "text"
                if ours and delta["offset"] == len(text):
                    text += delta["text"]
        return text


class StoreInbox:
    """The Inbox port."""

    def __init__(self, store: Store, run: RunRef, watch: Watch) -> None:
        self._store, self._run, self._watch = store, run, watch

    async def read_after(self, cursor: str) -> Sequence[inbox.Prompt]:
        prompts = await inbox.read_after(self._store, self._run, cursor, count=PAGE)
        failpoints.hit("harness.inbox.after")
        return prompts

    async def news(self) -> None:
        while (kinds := await self._watch.wait(LOOK_SECONDS)) and "inbox" not in kinds:
            pass


class SystemClock:
    """The Clock port."""

    def now(self) -> datetime:
        return utc_now()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def new_message_id(self) -> str:
        return f"msg_{secrets.token_hex(6)}"
