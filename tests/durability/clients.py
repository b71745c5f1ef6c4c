"""What clients of a run see and are told, wherever it runs: a viewer that follows it, and what writers wrote down.

Called by the rig of this folder and by the kills on a cluster (e2e/kills).
"""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator

from towline.errors import Rewound, StoreUnavailable
from towline.events.event import Event, RunRef
from towline.events.follow import follow
from towline.events.notices import Notices
from towline.events.store import Store

PAUSE_SECONDS = 0.05
_TOLD = re.compile(rb"(?:^| F )failpoint (\S+)$", re.MULTILINE)
"""A line of a process, or the same in the log that a node keeps of a container."""


class Follower:
    """A viewer: on from where it stands through every fault, and from the point that a loss of the store left."""

    def __init__(self, store: Store, run: RunRef, notices: Notices) -> None:
        self._store, self._run, self._notices = store, run, notices
        self.events: list[Event] = []
        """What it was given since the last loss of the store."""
        self.seen: list[list[Event]] = [self.events]
        """All that it was given: one sequence, and one more for each loss."""
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Returns after the terminal event."""
        next_seq = 1
        while True:
            try:
                async for event in follow(self._store, self._run, next_seq, notices=self._notices):
                    self.events.append(event)
                    next_seq = event.seq + 1
                    self._changed.set()
                return
            except Rewound as loss:
                next_seq = loss.head + 1
                self.events = []
                self.seen.append(self.events)
            except StoreUnavailable:
                await asyncio.sleep(PAUSE_SECONDS)

    async def until(self, type: str, nth: int = 1) -> Event:
        """The nth event of its type."""
        while True:
            found = [event for event in self.events if event.type == type]
            if len(found) >= nth:
                return found[nth - 1]
            self._changed.clear()
            await self._changed.wait()

    def story(self) -> Iterator[str]:
        """For a person, a line an event."""
        for event in self.events:
            told = event.data[:160].decode(errors="replace")
            yield f"{event.seq:>4} {event.time[11:23]} {event.epoch} {event.src:<8} {event.type} {told}"


def told(log: bytes) -> list[str]:
    """The failpoints that a process which was asked to tell them came by, in order."""
    return [name.decode() for name in _TOLD.findall(log)]


def acknowledged(lines: Iterable[bytes]) -> Iterator[str]:
    """Ids of the events which a harness' log, at level debug, says are in the run's log."""
    for line in lines:
        if b'"event appended"' in line:
            try:
                yield json.loads(line[line.index(b"{") :])["id"]
            except ValueError:
                pass  # a line that its process did not live to finish says nothing
