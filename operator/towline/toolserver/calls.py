"""The calls this tool server has seen: each id runs at most once, and keeps its result until it is acknowledged.

Called by `server.py`. A call runs detached from the request that started it; any number of requests may attach. It
does not know what a call does: the work is a coroutine function given by the caller.
"""

import asyncio
import hashlib
import json
import sys
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from .capture import Live
from .protocol import Refused
from .result import Result, ToolFault

RUNNING_LIMIT = 16
KEPT_LIMIT = 256
"""Results kept for a gateway that has not acknowledged them yet."""
KEPT_BYTES = 4 * 1024 * 1024
"""All kept results together: 256 large ones would double the process."""
DROPPED_LIMIT = 4096
"""Ids remembered after their result went, so that a repeat is refused and not run again."""
COALESCE_SECONDS = 0.05
"""Live output is handed on at most this often."""


class Call:
    """One call: running, or finished with `line`."""

    def __init__(self, call_id: str, fingerprint: bytes, *, streams: bool) -> None:
        self.id, self.fingerprint = call_id, fingerprint
        self.line: bytes | None = None
        """The result as its NDJSON line, once finished."""
        self.cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once somebody cancelled; the work must end soon and report outcome `cancelled`."""
        self._live = Live() if streams else None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def live_text(self) -> str:
        """The output so far, at most LIVE_LIMIT characters."""
        return self._live.text if self._live is not None else ""

    def output(self, data: bytes) -> None:
        """Take a piece of the command's output for those who watch."""
        if self._live is not None and self._live.add(data) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COALESCE_SECONDS, self._notify)

    def finish(self, line: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.line = line
        self._live = None
        self._notify()

    async def changed(self) -> None:
        """Wait until there is more live text, or the result."""
        await self._changed.wait()

    def _notify(self) -> None:
        # Everybody who waits now is woken; who comes later waits for the next change.
        self._timer = None
        self._changed.set()
        self._changed = asyncio.Event()


Work = Callable[[Call], Awaitable[Result]]


def fingerprint(tool: str, arguments: dict[str, Any]) -> bytes:
    """What must be equal for the same call id: the tool and its arguments, whatever the order of their keys."""
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).digest()


class Calls:
    """The registry. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self._running: dict[str, Call] = {}
        self._finished: OrderedDict[str, Call] = OrderedDict()
        self._finished_bytes = 0
        self._dropped: OrderedDict[str, bytes] = OrderedDict()
        self._unwanted: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        return len(self._running)

    def begin(self, call_id: str, print_: bytes, work: Work, *, streams: bool) -> Call:
        """Start the call, or attach to it if the id is known.

        Raises Refused: 409 when the id was used for another call, 429 when too many calls run.
        """
        known = self._running.get(call_id) or self._finished.get(call_id)
        seen = known.fingerprint if known is not None else self._dropped.get(call_id)
        if seen is not None and seen != print_:
            raise Refused(409, "CallMismatch", f"call {call_id} was started with another tool or other arguments")
        if known is not None:
            return known
        call = Call(call_id, print_, streams=streams)
        if seen is not None or call_id in self._unwanted:
            call.finish((_UNWANTED if seen is None else _DROPPED).line())
            return call
        if len(self._running) >= RUNNING_LIMIT:
            raise Refused(429, "TooManyCalls", f"{RUNNING_LIMIT} calls are running, wait for one of them")
        self._running[call_id] = call
        task = asyncio.get_running_loop().create_task(self._run(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return call

    def cancel(self, call_id: str) -> bool:
        """End the call. False when it had ended before.

        One that has not come yet, because its request was overtaken, will not run when it does.
        """
        if call_id in self._running:
            if not self._running[call_id].cancelled.done():
                self._running[call_id].cancelled.set_result(None)
            return True
        if call_id in self._finished or call_id in self._dropped:
            return False
        self._unwanted[call_id] = None
        if len(self._unwanted) > DROPPED_LIMIT:
            self._unwanted.popitem(last=False)
        return True

    def acknowledge(self, call_ids: Iterable[str]) -> None:
        """Drop these results; their ids stay known, so that a late repeat is not run again."""
        for call_id in call_ids:
            if call_id in self._finished:
                self._drop(call_id)

    async def _run(self, call: Call, work: Work) -> None:
        try:
            result = await work(call)
        except ToolFault as fault:
            result = fault.result()
        except Exception as fault:  # the edge of a call: whatever breaks, it gets its one result
            traceback.print_exc(file=sys.stderr)
            result = ToolFault("Internal", f"the tool server failed: {type(fault).__name__}").result()
        self._settle(call, result)

    def _settle(self, call: Call, result: Result) -> None:
        call.finish(result.line())
        del self._running[call.id]
        self._finished[call.id] = call
        self._finished_bytes += len(call.line or b"")
        while len(self._finished) > KEPT_LIMIT or self._finished_bytes > KEPT_BYTES:
            self._drop(next(iter(self._finished)))

    def _drop(self, call_id: str) -> None:
        call = self._finished.pop(call_id)
        self._finished_bytes -= len(call.line or b"")
        self._dropped[call_id] = call.fingerprint
        if len(self._dropped) > DROPPED_LIMIT:
            self._dropped.popitem(last=False)


_UNWANTED = Result("cancelled", "", 0)
"""Of a call that was cancelled before it came."""

_DROPPED = ToolFault(
    "ResultDropped",
    "this call ran, but its result is kept no longer: it was acknowledged, or too many were waiting to be",
).result()
