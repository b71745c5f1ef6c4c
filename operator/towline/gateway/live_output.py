"""A command's output on its way to the run's live stream, while the command runs.

`calls.py` makes one per forwarded call. Pieces are gathered, so that a chatty command costs one write per interval;
commands that end sooner cost none, since their result tells all. Never the truth: losing a delta is no fault.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from towline.errors import TowlineError

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.05
MAX_CHARACTERS = 64 * 1024
"""Of one call: a viewer wants to see that it moves; the result has the rest."""

Push = Callable[[Mapping[str, Any]], Awaitable[None]]


class LiveOutput:
    """`add` never blocks; `aclose` drops what has not been sent."""

    def __init__(self, call_id: str, push: Push) -> None:
        self._call_id, self._push = call_id, push
        self._received = self._sent = 0
        self._waiting: list[str] = []
        self._sender: asyncio.Task[None] | None = None

    def add(self, offset: int, text: str) -> None:
        """Take a piece of output; what came before (a re-attach tells it again) is left out."""
        fresh = text[max(self._received - offset, 0) :][: MAX_CHARACTERS - self._received]
        if offset > self._received or not fresh:
            return
        self._received += len(fresh)
        self._waiting.append(fresh)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def aclose(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])

    async def _send(self) -> None:
        try:
            while True:
                await asyncio.sleep(INTERVAL_SECONDS)
                if not self._waiting:
                    self._sender = None
                    return
                text = "".join(self._waiting)
                self._waiting.clear()
                delta = {"kind": "tool_output", "call_id": self._call_id, "offset": self._sent, "text": text}
                self._sent += len(text)
                await self._push(delta)
        except TowlineError as fault:
            log.debug("live output dropped", extra={"fields": {"call": self._call_id, "cause": str(fault)}})
