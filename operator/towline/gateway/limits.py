"""How much at once: calls of one run, calls of all runs, and who waits.

`calls.py` takes a place for each execution. Work above a limit waits its turn; work above the queue is refused, so that
one run cannot spend the memory or the patience of its neighbours.
"""

import asyncio

CALLS_PER_RUN = 8
QUEUED_PER_RUN = 64
CALLS_IN_ALL = 2048
"""Executions held by one gateway, waiting ones included. Each costs a few kilobytes."""

WAITERS_PER_CALL = 16
"""Requests that wait for one execution: the first, and a few that attached to it."""

BODY_BYTES = 4 * 1024 * 1024
"""Of one request; the MCP SDK's own default."""

BODY_SECONDS = 30.0
"""For a request's body to arrive: a caller that drips it gets nothing for it."""


class Busy(Exception):
    """Refused for now: try again after `seconds`. `run` tells whose limit it was: this run's, or the gateway's."""

    def __init__(self, message: str, *, run: bool, seconds: int = 1) -> None:
        self.run, self.seconds = run, seconds
        super().__init__(message)


class Places:
    """The places of one gateway; `of_run` makes the places of one run within them."""

    def __init__(self, in_all: int = CALLS_IN_ALL) -> None:
        self._in_all = in_all
        self.taken = 0

    def of_run(self, at_once: int = CALLS_PER_RUN, queued: int = QUEUED_PER_RUN) -> "RunPlaces":
        return RunPlaces(self, at_once, queued)

    def enter(self, *, ending: bool = False) -> None:
        if not ending and self.taken >= self._in_all:
            raise Busy(f"the gateway holds {self.taken} calls", run=False)
        self.taken += 1

    def leave(self) -> None:
        self.taken -= 1


class RunPlaces:
    """The places of one run."""

    def __init__(self, places: Places, at_once: int, queued: int) -> None:
        self._places, self._at_once, self._queued = places, at_once, queued
        self._running = asyncio.Semaphore(at_once)
        self.taken = 0

    def enter(self, *, ending: bool = False) -> None:
        """Take a place in the queue; raises Busy. Called before anything is awaited, so that refusals are cheap.

        What only ends a call is `ending` and never refused.
        """
        if not ending and self.taken >= self._at_once + self._queued:
            raise Busy(f"the run has {self.taken} calls running or waiting", run=True)
        self._places.enter(ending=ending)
        self.taken += 1

    def leave(self) -> None:
        self._places.leave()
        self.taken -= 1

    async def begin(self) -> None:
        """Wait until fewer than the run's limit of calls are running; may be cancelled. `end` follows."""
        await self._running.acquire()

    def end(self) -> None:
        self._running.release()
