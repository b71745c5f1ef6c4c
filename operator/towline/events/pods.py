"""Which run and epoch a harness pod speaks for, written before the pod exists, kept while it lives, removed with it.

The operator registers, the gateway looks up what a token's pod name means. That the pod is genuine is the token's to
prove; this only says whose it is.
"""

from dataclasses import dataclass

from towline.events.event import RunRef
from towline.events.store import Store
from towline.naming import harness_key


@dataclass(frozen=True, slots=True)
class HarnessPod:
    """The run, by its full UID, and the epoch under which the pod may act for it."""

    run: RunRef
    epoch: int


async def register_harness(store: Store, pod_name: str, run: RunRef, epoch: int) -> None:
    """Repeatable. Kept without a time to live: a run may wait for weeks."""
    fields: list[str | int] = ["namespace", run.namespace, "uid", run.uid, "name", run.name, "epoch", epoch]
    await store.call(lambda: store.client.execute_command("HSET", harness_key(pod_name), *fields))


async def harness_of(store: Store, pod_name: str) -> HarnessPod | None:
    """None for a pod that was never registered, or is gone; or the store has lost it, until the operator looks."""
    fields = ("namespace", "uid", "name", "epoch")
    values = await store.call(lambda: store.client.execute_command("HMGET", harness_key(pod_name), *fields))
    if None in values:
        return None
    namespace, uid, name, epoch = (value.decode() for value in values)
    return HarnessPod(RunRef(namespace, uid, name), int(epoch))


async def forget_harness(store: Store, pod_name: str) -> None:
    """The pod is gone, or may act no more. Repeatable."""
    await store.call(lambda: store.client.execute_command("DEL", harness_key(pod_name)))
