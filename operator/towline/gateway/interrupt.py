"""Ends the waits of one call early, for a reason that another task learns first: cancelled, or its sandbox is gone.

Each execution in `calls.py` has one. A wait inside `within` is cut at its deadline or at `raise_for`, whichever is
first; claiming and settling happen outside, so that no cut ever loses a record.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Interrupt:
    """At most one wait at a time. The first cause given is the one that is raised."""

    def __init__(self) -> None:
        self.cause: Exception | None = None
        self._wait: asyncio.Timeout | None = None

    def raise_for(self, cause: Exception, *, grace_seconds: float = 0.0) -> None:
        """Have the present wait (after the grace), and every later one, raise `cause`."""
        if self.cause is None:
            self.cause = cause
        if self._wait is not None and not self._wait.expired():
            soon, until = asyncio.get_running_loop().time() + grace_seconds, self._wait.when()
            self._wait.reschedule(soon if until is None else min(soon, until))

    def check(self) -> None:
        """Raise the cause of a cut that no wait has noticed yet."""
        if self.cause is not None:
            raise self.cause

    @asynccontextmanager
    async def within(self, seconds: float, late: Exception) -> AsyncIterator[None]:
        """Wait at most so long; raises the cause of a cut, or `late` when the time is up."""
        self.check()
        wait = asyncio.timeout(seconds)
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
