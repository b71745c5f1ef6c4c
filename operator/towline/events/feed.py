"""A namespace's feed: the lifecycle events of its runs, for indexers and dashboards, at least once.

Called by whoever plays the operator. `meta` keeps which events of a log are still to be fed, so nobody reads a log for
it, and one that is killed between the copy and its note copies again: readers dedupe by run and id.
"""

from collections.abc import Sequence
from typing import Any

from towline.events.event import Draft, Event, RunRef
from towline.events.log import EventLog, event_of
from towline.events.runs import publish_feed
from towline.events.store import Store


async def feed(store: Store, run: RunRef, unfed: Sequence[int]) -> None:
    """Copies these events of the log, `RunState.unfed`, in their order. One that is gone by now is passed over."""
    if not unfed:
        return
    keys = run.keys

    async def read() -> list[Any]:
        pipeline = store.client.pipeline(transaction=False)
        for seq in unfed:
            pipeline.execute_command("XRANGE", keys.log, f"{seq}-0", f"{seq}-0")
        return list(await pipeline.execute())

    for entries in await store.call(read):
        for entry_id, fields in entries:
            await publish_feed(store, event_of(run, int(entry_id[:-2]), fields))
    await store.script("fed", [keys.meta, keys.log], [keys.notify, max(unfed)])


async def feed_rest(store: Store, run: RunRef) -> None:
    """The last chance: whatever is still to be fed of a run whose history is let go."""
    log = EventLog(store, run)
    await feed(store, await log.named(), (await log.state()).unfed)


async def feed_afterwards(store: Store, run: RunRef, epoch: int, what: Draft) -> None:
    """Something that happened after the end of the run, and is no event of its log: its seq is 0."""
    await publish_feed(store, Event(0, what.id, what.type, run, None, what.time, "operator", epoch, what.data))
