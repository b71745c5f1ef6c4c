"""Which runs a store holds, read from the store itself, and which one a person means by a name.

Called by `here.py`. `find` is pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from towline.api.fields import nearest
from towline.errors import Gap, Invalid
from towline.events.event import RunRef
from towline.events.log import EventLog, RunState
from towline.events.store import Store
from towline.local.faults import NoSuchRun
from towline.naming import META_PATTERN, run_of_meta_key

SHORTEST_PREFIX = 4  # of a uid; less would often mean several runs
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """A run as it stands in a store. `started` is absent for a run whose first event was trimmed."""

    run: RunRef
    state: RunState
    started: datetime | None
    last_event: datetime | None

    @property
    def age_key(self) -> tuple[str, str]:
        """Sorts by age, the oldest first."""
        return self.started.isoformat() if self.started is not None else "", self.run.uid


async def kept_runs(store: Store) -> list[Kept]:
    """All runs of the store, the oldest first."""
    cursor, keys = "0", set[bytes]()
    while True:
        page = await store.call(
            lambda at=cursor: store.client.execute_command("SCAN", at, "MATCH", META_PATTERN, "COUNT", PAGE)  # type: ignore[misc]
        )
        cursor = page[0].decode() if isinstance(page[0], bytes) else str(page[0])
        keys.update(page[1])
        if cursor == "0":
            break
    runs = [await _kept(store, named) for key in sorted(keys) if (named := run_of_meta_key(key.decode())) is not None]
    return sorted(runs, key=lambda kept: kept.age_key)


async def _kept(store: Store, named: tuple[str, str]) -> Kept:
    run = RunRef(*named)
    log = EventLog(store, run)
    state = await log.state()
    run = RunRef(run.namespace, run.uid, state.name)
    started = last = None
    if state.head:
        try:
            started = datetime.fromisoformat((await log.read(1, 1))[0].time)
        except (Gap, IndexError):
            pass
        try:
            last = datetime.fromisoformat((await log.read(state.head, 1))[0].time)
        except (Gap, IndexError):
            pass
    return Kept(run, state, started, last)


class Named(Protocol):
    """Whatever a run can be found by."""

    @property
    def run(self) -> RunRef: ...


Found = TypeVar("Found", bound=Named)


def find(runs: Sequence[Found], wanted: str) -> Found:
    """The run that `wanted` means: a name (the latest run of it), a uid, or the beginning of one.

    Raises NoSuchRun, or Invalid when it is the beginning of several. `runs` come oldest first.
    """
    named = [kept for kept in runs if kept.run.name == wanted]
    if named:
        return named[-1]
    if len(wanted) >= SHORTEST_PREFIX:
        begun = [kept for kept in runs if kept.run.uid.startswith(wanted)]
        if len(begun) == 1:
            return begun[0]
        if begun:
            uids = ", ".join(kept.run.uid for kept in begun)
            raise Invalid(f"{wanted!r} is the beginning of several runs: {uids}")
    names = list(dict.fromkeys(kept.run.name for kept in reversed(runs)))
    if (meant := nearest(wanted, names)) is not None:
        raise NoSuchRun(f"no run {wanted!r} here; did you mean {meant!r}?")
    raise NoSuchRun(f"no run {wanted!r} here; " + (f"there are: {', '.join(names)}" if names else "there is none"))
