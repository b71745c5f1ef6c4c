"""Whether what a writer has appended would outlive the death of the server: on its disk, and on all of its replicas.

Called by the appender about once a second, off the path of its appends. Redis acknowledges a write before either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio.cluster import RedisCluster

from towline.errors import StoreUnavailable
from towline.events.event import RunRef
from towline.events.store import Store

_WAIT_MS = 500
_WRITE = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'confirming', '1') end"


@dataclass(frozen=True, slots=True)
class Standing:
    """`n` is the writer's last append that the store knows of, `whole`: the events asked for stand at their seqs;
    `durable`: all that is safe, as far as the server can tell; `replicated`: it ever had a replica to tell of."""

    n: int
    whole: bool
    durable: bool
    replicated: bool = False


class Durability:
    """Asks for one writer, whose standing is the field of `meta` given."""

    def __init__(self, store: Store, run: RunRef, field: str, nonce: str) -> None:
        self._store, self._keys, self._field, self._nonce = store, run.keys, field, nonce.encode()
        self._replicas = 0
        """As many as there ever were: one that is cut off may be promoted all the same."""

    async def ask(self, events: Sequence[tuple[int, str]] = ()) -> Standing:
        """One try; `events` are seqs and ids. Raises StoreUnavailable.

        In a Cluster nothing is ever said to be durable: there the limits hold.
        """
        client = self._store.client
        if isinstance(client, RedisCluster):
            read = [
                await self._store.call(lambda one=one: client.execute_command(*one), patience_seconds=0)  # type: ignore[misc]
                for one in self._reads(events)
            ]
            return Standing(self._number(read[0]), _stand(events, read[1:]), durable=False)
        *read, written, role, local, replicas = await self._store.call(lambda: self._asked(events), patience_seconds=0)
        for reply in read:
            if isinstance(reply, Exception):
                raise StoreUnavailable(f"event store {self._store.address}: {reply}") from reply
        if isinstance(role, list) and role[0] == b"master":
            self._replicas = max(self._replicas, len(role[2]))
        if isinstance(written, Exception):
            durable = False  # WAITAOF and WAIT speak of what this connection wrote before
        elif isinstance(local, list):
            durable = local[0] >= 1 and local[1] >= self._replicas
        else:  # Redis 7.0, or no append-only file: all that can be asked for is the replicas
            durable = isinstance(replicas, int) and replicas >= self._replicas
        return Standing(self._number(read[0]), _stand(events, read[1:]), durable, self._replicas > 0)

    async def _asked(self, events: Sequence[tuple[int, str]]) -> list[Any]:
        """WAIT speaks of what its own connection has written, so it writes a little; nothing for a run that is gone."""
        pipeline = self._store.client.pipeline(transaction=False)
        for one in self._reads(events):
            pipeline.execute_command(*one)
        pipeline.execute_command("EVAL", _WRITE, 1, self._keys.meta)
        pipeline.execute_command("ROLE")
        pipeline.execute_command("WAITAOF", 1, self._replicas, _WAIT_MS)
        pipeline.execute_command("WAIT", self._replicas, _WAIT_MS)
        return list(await pipeline.execute(raise_on_error=False))

    def _reads(self, events: Sequence[tuple[int, str]]) -> list[tuple[str, ...]]:
        standing = ("HGET", self._keys.meta, self._field)
        return [standing, *(("XRANGE", self._keys.log, f"{seq}-0", f"{seq}-0") for seq, _ in events)]

    def _number(self, standing: bytes | None) -> int:
        """0 when the store knows another writer, or none."""
        words = (standing or b"").split()
        return int(words[2]) if len(words) == 5 and words[1] == self._nonce else 0


def _stand(events: Sequence[tuple[int, str]], entries: Sequence[Any]) -> bool:
    """Whether each event is what the store has at its seq."""
    return all(
        len(found) == 1 and found[0][1][b"id"] == event_id.encode()
        for (_, event_id), found in zip(events, entries, strict=True)
    )
