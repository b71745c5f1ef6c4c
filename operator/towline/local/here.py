"""The runs of this machine: those of the kept store, and those of launchers at work that keep nothing.

Called by every verb that speaks of a run which it did not start itself. A launcher at work is reached through the
socket of the store it serves; a store at rest is served by us as long as we look.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from towline.errors import Invalid, StoreUnavailable
from towline.events.event import RunRef
from towline.events.store import Store
from towline.local.faults import NoSuchRun
from towline.local.index import Kept, find, kept_runs
from towline.local.runtime import living
from towline.local.store import Holder, exists, joined, opened


@dataclass(frozen=True, slots=True)
class Here:
    """A run, the store that has it, and who holds that."""

    kept: Kept
    store: Store
    holder: Holder | None

    @property
    def run(self) -> RunRef:
        return self.kept.run

    @property
    def open(self) -> bool:
        """Whether it has no outcome yet."""
        return self.kept.state.closed is None

    @property
    def worked_on(self) -> bool:
        """Whether a launcher plays the operator for it."""
        return self.holder is not None and self.holder.uid == self.run.uid

    @property
    def interrupted(self) -> bool:
        """Whether it has no outcome yet, and nobody who brings it there: its launcher was killed."""
        return self.open and not self.worked_on

    @property
    def asleep(self) -> bool:
        """Whether it waits for a prompt without a harness."""
        return self.worked_on and self.holder is not None and self.holder.asleep and self.open


@dataclass(frozen=True, slots=True)
class RunsHere:
    """What a look at this machine found."""

    runs: Sequence[Here]
    """The oldest first."""
    silent: bool
    """Whether a launcher at work keeps nothing and its store does not answer: it starts it anew, or ends just now."""


@asynccontextmanager
async def runs_here(path: Path, *, verb: str, unkept: bool) -> AsyncIterator[RunsHere]:
    """All of them; `unkept`: not only those of the store at `path`."""
    async with AsyncExitStack() as stack:
        stores: list[tuple[Store, Holder | None]] = []
        silent = False
        if unkept:
            for runtime in living():
                store, holder = await stack.enter_async_context(joined(runtime))
                if store is not None:
                    stores.append((store, holder))
                elif holder is not None:
                    silent = True
        if exists(path):
            stores.append(await stack.enter_async_context(opened(path, verb=verb)))
        here = [Here(kept, store, holder) for store, holder in stores for kept in await kept_runs(store)]
        yield RunsHere(sorted(here, key=lambda each: each.kept.age_key), silent)


@asynccontextmanager
async def run_here(path: Path, wanted: str, *, verb: str, unkept: bool, alive: bool = False) -> AsyncIterator[Here]:
    """The one that `wanted` means; `alive`: rather one that is worked on.

    Raises NoSuchRun, or Invalid; StoreUnavailable while it may be in a store that does not answer.
    """
    async with runs_here(path, verb=verb, unkept=unkept) as here:
        try:
            if not here.runs:
                raise NoSuchRun(f"no run {wanted!r} here: none is at work, and none is kept in {path}")
            meant = _meant(here.runs, wanted) if alive else find(here.runs, wanted)
        except NoSuchRun as fault:
            if here.silent:
                raise StoreUnavailable(f"the store of a run at work here does not answer, and else: {fault}") from None
            raise
        yield meant


def _meant(runs: Sequence[Here], wanted: str) -> Here:
    try:
        return find([each for each in runs if each.worked_on], wanted)
    except Invalid:
        return find(runs, wanted)
