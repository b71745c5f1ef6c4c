"""Following a run: every event from a seq on, without a hole, until the run ends.

Called by viewers, the CLI and the launcher. It subscribes first, then reads; a notice only says when to read again.
`follow` is for one connection to the store; a `Follower` outlives it, and knows what it read when it comes back.
"""

import random
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from towline.errors import Rewound
from towline.events.event import Event, RunRef
from towline.events.log import TRIMMED, EventLog, RunState
from towline.events.notices import BROKEN, Notices
from towline.events.store import Store

_PAGE = 1000

REMEMBERED = 16
"""How many of the last events a reader looks for when the store may have been another one."""

POLL_SECONDS = 20.0
"""How long a lost notice may go unnoticed, about. A broken connection is noticed by itself and wakes everybody, so this
is a net below a net, and a thousand idle runs must cost nothing."""


class Follower:
    """One reader of a run: where it is, and what tells it that the store lost what it read.

    It belongs to no store: after StoreUnavailable it goes on where it was, also with a store that was opened anew, and
    a loss meanwhile is noticed. After Rewound it is back at the first event to read again.
    """

    def __init__(self, run: RunRef, from_seq: int = 1, *, incarnation: int | None = None) -> None:
        self.run = run
        self.next_seq = from_seq
        """Behind the last event after which more was asked for."""
        self._incarnation = incarnation
        self._last: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)

    async def events(
        self,
        store: Store,
        *,
        notices: Notices | None = None,
        stop_at_end: bool = True,
        poll_seconds: float = POLL_SECONDS,
    ) -> AsyncGenerator[Event, None]:
        """As `follow` yields them."""
        looks = self.looks(store, notices=notices, stop_at_end=stop_at_end, poll_seconds=poll_seconds)
        async with aclosing(looks):
            async for event in looks:
                if event is not None:
                    yield event

    async def looks(
        self,
        store: Store,
        *,
        notices: Notices | None = None,
        stop_at_end: bool = True,
        poll_seconds: float = POLL_SECONDS,
    ) -> AsyncGenerator[Event | None, None]:
        """Like `events`, and None each time that the head was reached: the time to look at what no event tells."""
        async with AsyncExitStack() as stack:
            if notices is None:
                notices = Notices(store)
                stack.push_async_callback(notices.aclose)
            watch = await stack.enter_async_context(notices.watch(self.run, breaks=True))
            log = EventLog(store, self.run)
            await self._begin(log)
            kinds: set[str] = set()
            while True:
                if kinds & {"lost", BROKEN}:  # a failover breaks each connection
                    await self._verify(log)
                more = False
                if kinds != {"live"}:
                    events, more = await log.page(self.next_seq, _PAGE)
                    if len(events) >= REMEMBERED:  # or they would push out what another history is told by
                        await self._verify(log)
                    for event in events:
                        yield event
                        self._last.append((event.seq, event.id))
                        self.next_seq = event.seq + 1
                        if stop_at_end and event.terminal:
                            return
                    if not events:
                        state = await log.state()
                        self._check(state)
                        if stop_at_end and state.closed and state.head < self.next_seq:
                            return
                if not more:
                    yield None
                kinds = set()
                while not more and not (kinds := await watch.wait(poll_seconds * random.uniform(0.75, 1.5))):  # noqa: S311
                    # One command for a quiet run. A thousand of them must not look at one moment, hence the spread.
                    state = await log.state()
                    self._check(state)
                    more = state.head >= self.next_seq

    async def _begin(self, log: EventLog) -> None:
        state = await self._verify(log)
        if self.next_seq > state.head + 1:
            # Whoever read so far read what is no longer there, or there again as something else.
            raise self._rewound(state.incarnation, state.lost_head or state.head)

    async def _verify(self, log: EventLog) -> RunState:
        """Raises Rewound when what was read is not what is there now."""
        state = await log.state()
        self._check(state)
        # No writer tells of a loss that it died of together with the store.
        if (survived := await _survivor(log, self._last)) is not None:
            raise self._rewound(state.incarnation, survived)
        return state

    def _check(self, state: RunState) -> None:
        """The part of `_verify` that `meta` tells: a loss that a writer noticed."""
        survived = _survived(state, self._incarnation or state.incarnation)
        if survived is not None and survived < self.next_seq - 1:
            raise self._rewound(state.incarnation, survived)
        self._incarnation = state.incarnation

    def _rewound(self, incarnation: int, head: int) -> Rewound:
        self.next_seq, self._incarnation = head + 1, incarnation
        self._last = deque((each for each in self._last if each[0] <= head), REMEMBERED)
        return Rewound(incarnation, head)


def follow(
    store: Store,
    run: RunRef,
    from_seq: int = 1,
    *,
    notices: Notices | None = None,
    stop_at_end: bool = True,
    poll_seconds: float = POLL_SECONDS,
    incarnation: int | None = None,
) -> AsyncGenerator[Event, None]:
    """Yields each event once; ends after the terminal event, or never when `stop_at_end` is false.

    Raises Gap below the first kept entry, also when the log is trimmed in front of a slow reader; Rewound when the
    store lost entries that were yielded, or that come before `from_seq`: go on from its `head + 1`, deduping by id. It
    need not have a new incarnation, when whoever wrote the lost entries died with the store. Raises StoreUnavailable
    when the store is away, soon after a connection to it broke.
    `poll_seconds` bounds what a lost notice costs. A reader that comes back gives the `incarnation` it read under, as
    the last Rewound or `store.lost` told it (the first is 1): without it a loss since then may go unnoticed. A
    `Follower` knows it.
    """
    reader = Follower(run, from_seq, incarnation=incarnation)
    return reader.events(store, notices=notices, stop_at_end=stop_at_end, poll_seconds=poll_seconds)


async def _survivor(log: EventLog, last: Sequence[tuple[int, str]]) -> int | None:
    """None when all that was yielded last is still in the log; else the last seq that is, 0 when none of them is."""
    seqs = [seq for seq, _ in last]
    if not seqs:
        return None
    there = await log.ids(seqs[0], seqs[-1])
    gone = [seq for seq, event_id in last if there[seq] not in (event_id, TRIMMED)]
    if not gone:
        return None
    return gone[0] - 1 if gone[0] > seqs[0] else 0


def _survived(state: RunState, incarnation: int) -> int | None:
    """The last seq that is still what it was under `incarnation`, None for all of them. Two losses behind, nothing is
    known of the first."""
    if state.incarnation <= incarnation:
        return None
    return state.lost_head if state.incarnation == incarnation + 1 else 0
