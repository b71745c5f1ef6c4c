"""What a harness finds when it comes: the run's snapshot, its history and its state, read from the store.

Called once by `process.py`. A long history is read from its last compaction on; that of another run, which a new one
continues, up to the event that its snapshot names.
"""

import logging
from dataclasses import dataclass

from towline.api.snapshot import ContinueFrom, Snapshot
from towline.errors import Fenced, Gap, Invalid, LogClosed, RunCancelled, TowlineError
from towline.events import runs
from towline.events.event import RunRef
from towline.events.log import EventLog, RunState
from towline.events.store import Store
from towline.harness.compaction import continued
from towline.harness.fold import History, fold
from towline.harness.journal import Fact

log = logging.getLogger(__name__)


class SourceGone(TowlineError):
    """The history that the run is to continue is not there, or not as far as it says: the run cannot begin."""


@dataclass(frozen=True, slots=True)
class Found:
    """A run as the store has it."""

    snapshot: Snapshot
    history: History
    state: RunState
    last_seq: int
    entries: int
    """How many events were read for the history."""


async def read(store: Store, event_log: EventLog, epoch: int) -> Found:
    """Raises StopWriting when the run is not ours to work on, Invalid when the store holds no snapshot."""
    state = await event_log.state()
    check(state, epoch)
    raw = await runs.load_spec(store, event_log.run)
    if raw is None:
        raise Invalid(f"run {event_log.run.namespace}/{event_log.run.uid}: the store holds no spec")
    first = max(state.compacted, 1)
    history, last_seq = History(), first - 1
    while page := await event_log.read(last_seq + 1):
        fold(page, history)
        last_seq = page[-1].seq
    return Found(Snapshot.from_json(raw), history, state, last_seq, last_seq - first + 1)


def check(state: RunState, epoch: int) -> None:
    """Raises StopWriting when a harness of this epoch has nothing to do here, or no more."""
    if state.closed is not None:
        raise LogClosed(state.closed)
    if state.epoch > epoch:
        raise Fenced(epoch, state.epoch)
    if state.cancel is not None:
        raise RunCancelled(state.cancel)


async def taken_over(store: Store, source: ContinueFrom) -> Fact:
    """`context.compacted` for a run that begins with the history of another. Raises SourceGone.

    Behind a gap, as of a trimmed beginning, a history begins with the next compaction: all before that is in it.
    """
    event_log = EventLog(store, RunRef(source.namespace, source.uid))
    history, seq, behind_gap = History(), 0, 0
    while source.seq is None or seq < source.seq:
        wanted = 1000 if source.seq is None else min(1000, source.seq - seq)
        try:
            page = await event_log.read(seq + 1, wanted)
        except Gap as gap:
            behind_gap = gap.first_available
            seq = behind_gap - 1
            continue
        if not page:
            break
        fold(page, history)
        if any(event.type == "context.compacted" for event in page):
            behind_gap = 0
        seq = page[-1].seq
    if fault := _fault_of_source(source.seq, seq, behind_gap):
        raise SourceGone(f"the history of run {source.namespace}/{source.uid}, which continueFrom names, {fault}")
    return Fact("context.compacted", continued(history, {"uid": source.uid, "seq": seq}))


def _fault_of_source(wanted: int | None, seq: int, behind_gap: int) -> str | None:
    """Why what was read up to `seq` is no history; None when it is one.

    `behind_gap` is the first event behind a gap which no compaction bridges; 0 when there is none.
    """
    if seq == 0:
        return "is gone"
    if wanted is not None and seq < wanted:
        return f"ends at seq {seq}, before seq {wanted}"
    if wanted is not None and wanted < behind_gap:
        return f"is kept from seq {behind_gap} on, which is behind seq {wanted}"
    if behind_gap:
        return f"has a gap before seq {behind_gap}, and no context.compacted behind it to begin with"
    return None
