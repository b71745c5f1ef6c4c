"""The runs of this machine: those of the kept store, and those of launchers at work that keep nothing.

Called by every verb that speaks of a run which it did not start itself. A launcher at work is reached through the
socket of the store it serves; a store at rest is served by us as long as we look.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from towline.errors import Invalid
from towline.events.event import RunRef
from towline.events.store import Store
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
    @property
    def interrupted(self) -> bool:
        """Whether it has no outcome yet, and nobody who brings it there: its launcher was killed."""
        return self.open and not self.worked_on

    def asleep(self) -> bool:
        """Whether it waits for a prompt without a harness."""
        return self.worked_on and self.holder is not None and self.holder.asleep and self.open


@asynccontextmanager
async def runs_here(path: Path, *, verb: str, unkept: bool) -> AsyncIterator[list[Here]]:
    """All of them, the oldest first; `unkept`: not only those of the store at `path`."""
    async with AsyncExitStack() as stack:
        stores: list[tuple[Store, Holder | None]] = []
        if unkept:
            found = [await stack.enter_async_context(joined(runtime)) for runtime in living()]
            stores += [each for each in found if each is not None]
        if exists(path):
            stores.append(await stack.enter_async_context(opened(path, verb=verb)))
        here = [Here(kept, store, holder) for store, holder in stores for kept in await kept_runs(store)]
        yield sorted(here, key=lambda each: each.kept.age_key)


@asynccontextmanager
async def run_here(path: Path, wanted: str, *, verb: str, unkept: bool, alive: bool = False) -> AsyncIterator[Here]:
    """The one that `wanted` means; `alive`: rather one that is worked on. Raises Invalid."""
    async with runs_here(path, verb=verb, unkept=unkept) as runs:
        if not runs:
            raise Invalid(f"no run {wanted!r} here: none is at work, and none is kept in {path}")
        yield _meant(runs, wanted) if alive else find(runs, wanted)


def _meant(runs: Sequence[Here], wanted: str) -> Here:
    try:
        return find([each for each in runs if each.worked_on], wanted)
    except Invalid:
        return find(runs, wanted)
