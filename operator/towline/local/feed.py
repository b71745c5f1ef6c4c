"""Copies a run's lifecycle events to its namespace's feed, as the operator does in a cluster.

Started by `launcher.py` beside the supervisor. At least once: readers dedupe by run and id.
"""

import asyncio
from datetime import datetime

from towline.errors import Rewound, StoreUnavailable
from towline.events import runs
from towline.events.event import RunRef, draft
from towline.events.feed import feed_afterwards
from towline.events.follow import Follower
from towline.events.notices import Notices
from towline.events.store import Store

LIFECYCLE = ("run.", "sandbox.", "harness.lost")
PAUSE_SECONDS = 0.2


async def publish_lifecycle(store: Store, notices: Notices, run: RunRef) -> None:
    """Returns after the terminal event."""
    reader = Follower(run)
    while True:
        try:
            async for event in reader.events(store, notices=notices):
                if event.type.startswith(LIFECYCLE):
                    await runs.publish_feed(store, event)
            return
        except Rewound:
            pass  # told again, as what they are now
        except StoreUnavailable:
            await asyncio.sleep(PAUSE_SECONDS)


async def publish_deleted(store: Store, run: RunRef, name: str, epoch: int, *, now: datetime) -> None:
    """Tells of a sandbox deleted after the end of its run: no event of the log, so its seq is 0."""
    await feed_afterwards(store, run, epoch, draft("sandbox.deleted", {"name": name}, now=now))
