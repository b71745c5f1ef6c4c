"""Posts what a person types at the launcher's own terminal into the inbox of its run.

Started by `launcher.py`. Each line has a key of its own, so that a repeat after an absence of the store is no second
prompt.
"""

import asyncio
import uuid

from towline import inbox
from towline.errors import Invalid, LogClosed, StoreUnavailable
from towline.events.event import RunRef
from towline.events.store import Store
from towline.local.watch import Viewer

SENDER = "terminal"
PAUSE_SECONDS = 0.2


async def post_typed(store: Store, run: RunRef, lines: "asyncio.Queue[str]", viewer: Viewer) -> None:
    """Returns when the run has ended."""
    while True:
        text, key = await lines.get(), uuid.uuid4().hex
        while True:
            try:
                await inbox.post(store, run, text, key=key, sender=SENDER)
                break
            except StoreUnavailable:
                await asyncio.sleep(PAUSE_SECONDS)
            except Invalid as fault:
                viewer.note(str(fault))
                break
            except LogClosed:
                return
