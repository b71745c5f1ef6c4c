"""Everything an operator needs of a run, in one round trip: its state, its sandbox, its harness, its last event.

Called by the controller on each look at a run, and by its sweep for many runs at once. The log is not folded: what is
summed up stands in `meta`, and the last event of a closed log is its terminal event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from towline.errors import Gap
from towline.events.event import Event, RunRef
from towline.events.log import META_FIELDS, RunState, event_of, resolve, state_of
from towline.events.sandbox import RECORD_FIELDS, SandboxRecord, record_of
from towline.events.store import Store
from towline.naming import harness_key

_PIPELINE = 500


@dataclass(frozen=True, slots=True)
class Glance:
    """One look. `last` is None only for a run without any event."""

    state: RunState
    sandbox: SandboxRecord
    last: Event | None
    spec: bytes | None = None
    """The snapshot, only when it was asked for."""
    registered: bool = True
    """The gateway knows the harness pod that was asked for. A failover may lose that beside a run that is whole."""

    @property
    def terminal(self) -> Event | None:
        """The event that closed the log."""
        return self.last if self.state.closed is not None else None


async def glance(store: Store, run: RunRef, *, harness: str = "", with_spec: bool = False) -> Glance:
    """`harness` is the name of the pod that acts for the run, if one does. Raises StoreUnavailable."""
    keys = run.keys

    async def read() -> list[Any]:
        pipeline = store.client.pipeline(transaction=False)
        pipeline.execute_command("HMGET", keys.meta, *META_FIELDS)
        pipeline.execute_command("HMGET", keys.sandbox, *RECORD_FIELDS)
        pipeline.execute_command("XREVRANGE", keys.log, "+", "-", "COUNT", 1)
        if harness:
            pipeline.execute_command("EXISTS", harness_key(harness))
        if with_spec:
            pipeline.execute_command("GET", keys.spec)
        return list(await pipeline.execute())

    meta, sandbox, entries, *more = await store.call(read)
    registered = bool(more.pop(0)) if harness else True
    state = state_of(meta)
    last = event_of(run, int(entries[0][0][:-2]), entries[0][1]) if entries else None
    if last is not None and state.closed is not None:
        try:
            last = await resolve(store, last)
        except Gap:
            last = replace(last, data=b"{}")  # the outcome stands in the type; its details are gone
    return Glance(state, record_of(sandbox), last, more[0] if more else None, registered)


async def states(store: Store, runs: Sequence[RunRef]) -> list[RunState]:
    """The states of many runs, in their order, by one pipeline a few hundred."""
    return [state_of(values) for values in await _of_many(store, runs, META_FIELDS)]


async def open_logs(store: Store, runs: Sequence[RunRef]) -> list[bool]:
    """Of each run, in their order, whether the store knows it and its log has no end; cheaper than the states."""
    found = await _of_many(store, runs, ("epoch", "closed"))
    return [epoch is not None and closed is None for epoch, closed in found]


async def _of_many(store: Store, runs: Sequence[RunRef], fields: Sequence[str]) -> list[list[bytes | None]]:
    """These fields of each run's `meta`."""

    async def read(some: Sequence[RunRef]) -> list[list[bytes | None]]:
        pipeline = store.client.pipeline(transaction=False)
        for run in some:
            pipeline.execute_command("HMGET", run.keys.meta, *fields)
        return list(await pipeline.execute())

    found: list[list[bytes | None]] = []
    for start in range(0, len(runs), _PIPELINE):
        found += await store.call(lambda some=runs[start : start + _PIPELINE]: read(some))  # type: ignore[misc]
    return found
