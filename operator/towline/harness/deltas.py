"""Live text: joins a model's words into deltas of 50 ms or 1 KiB and sends them while the model goes on.

The loop's Deltas port, one object an answer. A delta that cannot be sent is dropped, and with it the rest of that
answer's, since readers go by offsets; only StopWriting reaches the loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from towline.errors import StopWriting, TowlineError
from towline.harness.transcript import well_formed

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.05
ENOUGH_CHARACTERS = 1024

Push = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends one delta: {kind, message_id, offset, text}."""


class LiveDeltas:
    """Async context manager: leaving it normally, or because the model failed, sends what is left."""

    def __init__(self, push: Push, message_id: str) -> None:
        self._push = push
        self._message_id = message_id
        self._pending: list[tuple[str, list[str]]] = []
        self._pending_characters = 0
        self._sent = {"text": 0, "thinking": 0}
        self._half = {"text": "", "thinking": ""}
        """The first half of a character whose second half is still to come: some servers send it on its own."""
        self._something = asyncio.Event()
        self._enough = asyncio.Event()
        self._closing = False
        self._broken = False
        self._stop: StopWriting | None = None

    async def __aenter__(self) -> "LiveDeltas":
        self._pump = asyncio.create_task(self._pump_out(), name="deltas")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._something.set()
        self._enough.set()
        if isinstance(error, asyncio.CancelledError):
            self._pump.cancel()
        try:
            await asyncio.wait([self._pump])
        finally:
            self._pump.cancel()  # for one who is cancelled while waiting here
        if self._stop is not None and error is None:
            raise self._stop

    async def add(self, kind: str, text: str) -> None:
        """Never waits for the store. Raises the StopWriting that an earlier delta met."""
        if self._stop is not None:
            raise self._stop
        if self._broken or not text:
            return
        if not self._pending or self._pending[-1][0] != kind:
            self._pending.append((kind, []))
        self._pending[-1][1].append(text)
        self._pending_characters += len(text)
        self._something.set()
        if self._pending_characters >= ENOUGH_CHARACTERS:
            self._enough.set()

    async def _pump_out(self) -> None:
        """Never fails: whatever goes wrong costs this answer's live text, and is logged or told to the loop."""
        try:
            await self._send_until_closed()
        except StopWriting as stop:
            self._stop = stop
        except Exception as fault:  # a task that died unseen would drop every word that follows without a trace
            self._broken = True
            cause = str(fault) if isinstance(fault, TowlineError) else f"{type(fault).__name__}: {fault}"
            log.warning("deltas dropped", extra={"fields": {"message": self._message_id, "cause": cause}})
        self._pending.clear()

    async def _send_until_closed(self) -> None:
        while not (self._closing and not self._pending):
            await self._something.wait()
            try:
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._enough.wait()
            except TimeoutError:
                pass
            batch, self._pending, self._pending_characters = self._pending, [], 0
            if not self._closing:
                self._something.clear()
                self._enough.clear()
            for kind, pieces in batch:
                text = self._half[kind] + "".join(pieces)
                self._half[kind] = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
                await self._send(kind, text.removesuffix(self._half[kind]))
        for kind, half in self._half.items():
            await self._send(kind, half)

    async def _send(self, kind: str, text: str) -> None:
        if not text:
            return
        text = well_formed(text)
        await self._push({"kind": kind, "message_id": self._message_id, "offset": self._sent[kind], "text": text})
        self._sent[kind] += len(text)
