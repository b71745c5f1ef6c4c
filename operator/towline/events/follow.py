"""Following a run: every event from a seq on, without a hole, until the run ends.

Called by viewers, the CLI and the launcher. It subscribes first, then reads; a notice only says when to read again.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from towline.errors import Rewound
from towline.events.event import Event, RunRef
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store

_PAGE = 1000


async def follow(
    store: Store,
    run: RunRef,
    from_seq: int = 1,
    *,
    notices: Notices | None = None,
    stop_at_end: bool = True,
    poll_seconds: float = 2.0,
) -> AsyncIterator[Event]:
    """Yields each event once; ends after the terminal event, or never when `stop_at_end` is false.

    Raises Gap below the first kept entry, also when the log is trimmed in front of a slow reader; Rewound when the
    store lost entries that were yielded, or that come before `from_seq`: go on from its `head + 1`, deduping by id.
    `poll_seconds` bounds what a lost notice costs.
    """
    async with AsyncExitStack() as stack:
        if notices is None:
            notices = Notices(store)
            stack.push_async_callback(notices.aclose)
        watch = await stack.enter_async_context(notices.watch(run))
        log = EventLog(store, run)
        state = await log.state()
        if from_seq > state.head + 1:
            raise Rewound(state.incarnation, state.head)  # whoever read so far read what is no longer there
        incarnation = state.incarnation
        next_seq = from_seq
        kinds: set[str] = set()
        while True:
            events, more = await log.page(next_seq, _PAGE)
            for event in events:
                yield event
                next_seq = event.seq + 1
                if stop_at_end and event.terminal:
                    return
            if not events or "lost" in kinds:
                state = await log.state()
                if state.incarnation > incarnation:
                    # Two losses behind, nothing is known of the first: begin anew.
                    survived = state.lost_head if state.incarnation == incarnation + 1 else 0
                    if survived < next_seq - 1:
                        raise Rewound(state.incarnation, survived)
                    incarnation = state.incarnation
                if stop_at_end and state.closed and state.head < next_seq:
                    return
            kinds = set() if more else await watch.wait(poll_seconds)
