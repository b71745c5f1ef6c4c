"""Shows a run to a viewer: its events in order without a gap, and between them the deltas of what is being produced.

Called by the launcher for its own run and by `towline tail`. Events are the truth; a delta is shown only while the
message or the call it belongs to is open, so a late or lost one changes nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from towline.errors import Rewound
from towline.events.event import Event, RunRef
from towline.events.live import read_deltas
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store

PAGE = 1000
POLL_SECONDS = 2.0  # a lost notice delays an event by no more


class Viewer(Protocol):
    """Where a run is shown. No method may block for long; an OSError (a closed pipe) ends the watching."""

    @property
    def wants_deltas(self) -> bool:
        """Whether to be shown what is still being produced."""

    def event(self, event: Event) -> None:
        """One durable event; they come in order."""

    def delta(self, delta: Mapping[str, Any]) -> None:
        """A piece of an open message or call: {kind, message_id | call_id, offset, text}."""

    def note(self, text: str) -> None:
        """What the launcher itself is doing, for a person."""

    def typed(self, text: str | None) -> None:
        """A person typed a prompt at this very terminal, which shows it already; None: nothing more will be typed."""


class Deltas:
    """Holds deltas back until what they belong to is open, and drops those that come too late. Pure."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._closed: set[str] = set()
        self._held: list[Mapping[str, Any]] = []

    def saw(self, event: Event) -> None:
        """Notes what `event` opens or closes."""
        if event.type == "agent.message_start":
            self._open.add(str(event.payload["message_id"]))
        elif event.type in ("agent.message", "agent.message_aborted"):
            self._close(str(event.payload["message_id"]))
        elif event.type == "agent.tool_use":
            self._open.add(str(event.payload["call_id"]))
        elif event.type == "agent.tool_result":
            self._close(str(event.payload["call_id"]))

    def _close(self, owner: str) -> None:
        self._open.discard(owner)
        self._closed.add(owner)

    def admit(self, deltas: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the held and the new ones that can be shown now, in order."""
        shown, held = [], []
        for delta in [*self._held, *deltas]:
            owner = str(delta.get("message_id") or delta.get("call_id"))
            if owner in self._open:
                shown.append(delta)
            elif owner not in self._closed:
                held.append(delta)
        self._held = held
        return shown


async def replay(store: Store, run: RunRef, viewer: Viewer, from_seq: int = 1) -> None:
    """Shows what the log holds from `from_seq` on, and returns. Raises Gap below the first kept entry."""
    log = EventLog(store, run)
    while events := await log.read(from_seq, PAGE):
        for event in events:
            viewer.event(event)
        from_seq = events[-1].seq + 1


class Watch:
    """Shows a run as it happens. `next_seq` says where to go on when the store was away for a while."""

    def __init__(self, store: Store, notices: Notices, run: RunRef, viewer: Viewer, from_seq: int = 1) -> None:
        self.next_seq = from_seq
        self._log, self._viewer = EventLog(store, run), viewer
        self._store, self._notices, self._run = store, notices, run
        self._deltas, self._last_delta = Deltas(), "0-0"

    async def until_closed(self) -> Event:
        """Shows everything up to the terminal event, which it returns. Raises Gap, Rewound or StoreUnavailable."""
        async with self._notices.watch(self._run) as changes:
            incarnation = (await self._log.state()).incarnation
            while True:
                if (terminal := await self._show_events()) is not None:
                    return terminal
                if self._viewer.wants_deltas:
                    await self._show_deltas()
                kinds = await changes.wait(POLL_SECONDS)
                if not kinds or "lost" in kinds:
                    state = await self._log.state()
                    if state.incarnation > incarnation and state.lost_head < self.next_seq - 1:
                        raise Rewound(state.incarnation, state.lost_head)

    async def _show_events(self) -> Event | None:
        while events := await self._log.read(self.next_seq, PAGE):
            for event in events:
                self._deltas.saw(event)
                self._viewer.event(event)
                self.next_seq = event.seq + 1
                if event.terminal:
                    return event
        return None

    async def _show_deltas(self) -> None:
        entries = await read_deltas(self._store, self._run, self._last_delta)
        if entries:
            self._last_delta = entries[-1][0]
        for delta in self._deltas.admit(delta for _, delta in entries):
            self._viewer.delta(delta)
