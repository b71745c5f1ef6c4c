"""The work queue: keys that want a look, each at most once in it and in one worker's hands at a time.

The semantics are client-go's, which controllers have relied on for a decade: a key added while it is worked on comes
back once; a key that failed comes back later each time. It knows neither what a key means nor who works on it.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.05, 60.0


class WorkQueue(Generic[K]):
    """`clock` and `spread` (0 to 1) are the loop's time and a random number unless a test gives others."""

    def __init__(
        self, *, clock: Callable[[], float] | None = None, spread: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self._spread = spread
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        """Waits for a worker, or for the one that has it."""
        self._working: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._added = 0
        self._failures: dict[K, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: K) -> None:
        """Wants a look now."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        self._due.pop(key, None)
        if key not in self._working:
            self._ready.append(key)
            self._changed.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Wants a look in `seconds`; an earlier one that was asked for stays."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._dirty and key not in self._working:
            return
        due = self._clock() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._added += 1
            heapq.heappush(self._heap, (due, self._added, key))
            self._changed.set()

    def retry(self, key: K) -> float:
        """It failed: later each time, spread so that many do not come back together. The delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 20), LONGEST_DELAY_SECONDS)
        delay *= 0.5 + 0.5 * self._spread()
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """It succeeded: the next failure counts as the first."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key, which is the caller's until `done`."""
        while True:
            self._release()
            if self._ready:
                key = self._ready.popleft()
                self._dirty.discard(key)
                self._working.add(key)
                return key
            self._changed.clear()
            wait = self._heap[0][0] - self._clock() if self._heap else None
            try:
                await asyncio.wait_for(self._changed.wait(), wait)
            except TimeoutError:
                pass

    def done(self, key: K) -> None:
        """The worker is through; if the key was added meanwhile it comes again."""
        self._working.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._changed.set()

    def __len__(self) -> int:
        """How many keys want a look now."""
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Nothing to do but wait for time or news."""
        return not self._ready and not self._working

    def _release(self) -> None:
        """Moves what is due into the queue. An entry of the heap that no longer is a key's due time is void."""
        now = self._clock()
        while self._heap and (self._heap[0][0] <= now or self._due.get(self._heap[0][2]) != self._heap[0][0]):
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                self.add(key)
