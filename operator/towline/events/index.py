"""Which runs an installation has put into the store, so that what is left of deleted ones can be found without a scan.

Called by the operator. Several installations may share a store: each knows its own runs by its own id.
"""

from towline.events.event import RunRef
from towline.events.store import Store
from towline.naming import index_key


async def add(store: Store, installation: str, run: RunRef) -> None:
    """Before the run's first key is written. Repeatable."""
    member = f"{run.namespace}/{run.uid}"
    await store.call(lambda: store.client.execute_command("SADD", index_key(installation), member))


async def remove(store: Store, installation: str, run: RunRef) -> None:
    """Nothing of the run is left, or will be soon. Repeatable."""
    member = f"{run.namespace}/{run.uid}"
    await store.call(lambda: store.client.execute_command("SREM", index_key(installation), member))


async def members(store: Store, installation: str) -> list[RunRef]:
    """All of them, without their names."""
    found: list[RunRef] = []
    cursor: bytes | int = 0
    while True:
        reply = await store.call(
            lambda cursor=cursor: store.client.execute_command("SSCAN", index_key(installation), cursor, "COUNT", 1000)  # type: ignore[misc]
        )
        cursor, some = reply
        found += [RunRef(*member.decode().split("/", 1)) for member in some]
        if int(cursor) == 0:
            return found
