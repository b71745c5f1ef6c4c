"""Following a run: every event from a seq on, without a hole, until the run ends.

Called by viewers, the CLI and the launcher. It subscribes first, then reads; a notice only says when to read again.
"""

import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

from towline.errors import Rewound
from towline.events.event import Event, RunRef
from towline.events.log import TRIMMED, EventLog, RunState
from towline.events.notices import Notices
from towline.events.store import Store

_PAGE = 1000

REMEMBERED = 16
"""How many of the last events a reader looks for when the store may have been another one."""

POLL_SECONDS = 20.0
"""How long a lost notice may go unnoticed, about. A broken connection is noticed by itself and wakes everybody, so this
is a net below a net, and a thousand idle runs must cost nothing."""


async def follow(
    store: Store,
    run: RunRef,
    from_seq: int = 1,
    *,
    notices: Notices | None = None,
    stop_at_end: bool = True,
    poll_seconds: float = POLL_SECONDS,
    incarnation: int | None = None,
) -> AsyncIterator[Event]:
    """Yields each event once; ends after the terminal event, or never when `stop_at_end` is false.

    Raises Gap below the first kept entry, also when the log is trimmed in front of a slow reader; Rewound when the
    store lost entries that were yielded, or that come before `from_seq`: go on from its `head + 1`, deduping by id. It
    need not have a new incarnation, when whoever wrote the lost entries died with the store.
    `poll_seconds` bounds what a lost notice costs. A reader that comes back gives the `incarnation` it read under, as
    the last Rewound or `store.lost` told it (the first is 1): without it a loss since then may go unnoticed.
    """
    async with AsyncExitStack() as stack:
        if notices is None:
            notices = Notices(store)
            stack.push_async_callback(notices.aclose)
        watch = await stack.enter_async_context(notices.watch(run))
        log = EventLog(store, run)
        state = await log.state()
        incarnation = incarnation or state.incarnation
        next_seq = from_seq
        if from_seq > state.head + 1:
            # Whoever read so far read what is no longer there, or there again as something else.
            survived = _survived(state, incarnation)
            raise Rewound(state.incarnation, state.lost_head or state.head if survived is None else survived)
        incarnation = _checked(state, incarnation, next_seq)
        kinds: set[str] = set()
        last: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        while True:
            if "lost" in kinds:  # also after each broken connection, as a failover breaks it
                state = await log.state()
                incarnation = _checked(state, incarnation, next_seq)
                if (survived := await _survivor(log, last)) is not None:
                    raise Rewound(state.incarnation, survived)
            events, more = await log.page(next_seq, _PAGE)
            for event in events:
                yield event
                last.append((event.seq, event.id))
                next_seq = event.seq + 1
                if stop_at_end and event.terminal:
                    return
            if not events:
                state = await log.state()
                incarnation = _checked(state, incarnation, next_seq)
                if stop_at_end and state.closed and state.head < next_seq:
                    return
            kinds = set()
            while not more and not (kinds := await watch.wait(poll_seconds * random.uniform(0.75, 1.5))):  # noqa: S311
                # One command for a quiet run. A thousand of them must not look at the same moment, hence the spread.
                state = await log.state()
                incarnation = _checked(state, incarnation, next_seq)
                more = state.head >= next_seq


async def _survivor(log: EventLog, last: Sequence[tuple[int, str]]) -> int | None:
    """None when all that was yielded last is still in the log; else the last seq that is, 0 when none of them is.

    Writers tell of a loss that they know of. Where they died with the store, only readers can.
    """
    seqs = [seq for seq, _ in last]
    if not seqs:
        return None
    there = await log.ids(seqs[0], seqs[-1])
    gone = [seq for seq, event_id in last if there[seq] not in (event_id, TRIMMED)]
    if not gone:
        return None
    return gone[0] - 1 if gone[0] > seqs[0] else 0


def _checked(state: RunState, incarnation: int, next_seq: int) -> int:
    """The run's incarnation; raises Rewound when what was read under `incarnation` is not what is there now."""
    survived = _survived(state, incarnation)
    if survived is not None and survived < next_seq - 1:
        raise Rewound(state.incarnation, survived)
    return state.incarnation


def _survived(state: RunState, incarnation: int) -> int | None:
    """The last seq that is still what it was under `incarnation`, None for all of them. Two losses behind, nothing is
    known of the first."""
    if state.incarnation <= incarnation:
        return None
    return state.lost_head if state.incarnation == incarnation + 1 else 0
