"""Ends the waits of one call early, for a reason that another task learns first: cancelled, or its sandbox is gone.

Each execution in `calls.py` has one. A wait inside `within` is cut at its deadline or at `raise_for`, whichever is
first; claiming and settling happen outside, so that no cut ever loses a record.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Unwanted(Exception):
    """Nobody wants the call any more: it was cancelled, by itself or with its run."""


class Interrupt:
    """At most one wait at a time. The first cause given is the one that is raised."""

    def __init__(self) -> None:
        self.cause: Exception | None = None
        self._until = math.inf
        """Loop time from which on waits raise the cause."""
        self._wait: asyncio.Timeout | None = None

    def raise_for(self, cause: Exception, *, grace_seconds: float = 0.0) -> None:
        """Have the present wait, and every later one, raise `cause` once the grace is over."""
        if self.cause is None:
            self.cause = cause
        self._until = min(self._until, asyncio.get_running_loop().time() + grace_seconds)
        if self._wait is not None and not self._wait.expired():
            until = self._wait.when()
            self._wait.reschedule(self._until if until is None else min(self._until, until))

    def allow(self, seconds: float) -> None:
        """Give the waits to come so much time even if there is a cause: something has to be ended first."""
        if self.cause is not None:
            self._until = asyncio.get_running_loop().time() + seconds

    def check(self) -> None:
        """Raise the cause of a cut that no wait has noticed yet."""
        if self.cause is not None and asyncio.get_running_loop().time() >= self._until:
            raise self.cause

    @asynccontextmanager
    async def within(self, seconds: float, late: Exception) -> AsyncIterator[None]:
        """Wait at most so long; raises the cause of a cut, or `late` when the time is up."""
        self.check()
        wait = asyncio.timeout_at(min(asyncio.get_running_loop().time() + seconds, self._until))
        try:
            async with wait:
                self._wait = wait
                yield
        except TimeoutError:
            if not wait.expired():
                raise
            raise self.cause or late from None
        finally:
            self._wait = None
