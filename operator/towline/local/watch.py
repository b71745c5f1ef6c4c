"""Shows a run to a viewer: its events in order without a gap, and between them the deltas of what is being produced.

Called by the launcher for its own run and by `towline tail`. Events are the truth; a delta is shown only while the
message or the call it belongs to is open, so a late or lost one changes nothing.
"""

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from towline.events.event import Event, RunRef
from towline.events.follow import Follower
from towline.events.live import read_deltas
from towline.events.notices import Notices
from towline.events.store import Store

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


class Watch:
    """Shows a run as it happens; it outlives the store that the run is read from, as `Follower` does."""

    def __init__(self, run: RunRef, viewer: Viewer, from_seq: int = 1) -> None:
        self._run, self._viewer = run, viewer
        self._reader = Follower(run, from_seq)
        self._deltas, self._last_delta = Deltas(), "0-0"

    @property
    def next_seq(self) -> int:
        """Of the first event that is not shown yet."""
        return self._reader.next_seq

    async def until_closed(self, store: Store, notices: Notices) -> Event | None:
        """Shows everything up to the terminal event, which it returns; None when that comes before the first to show.

        Raises Gap, Rewound or StoreUnavailable. After the last two it may be called again, and goes on.
        """
        looks = self._reader.looks(store, notices=notices, poll_seconds=POLL_SECONDS)
        async with aclosing(looks):
            async for event in looks:
                if event is not None:
                    self._deltas.saw(event)
                    self._viewer.event(event)
                    if event.terminal:
                        return event
                elif self._viewer.wants_deltas:
                    await self._show_deltas(store)
        return None

    async def until_head(self, store: Store, notices: Notices) -> None:
        """Shows what is there by now, and returns. Raises what `until_closed` raises."""
        looks = self._reader.looks(store, notices=notices)
        async with aclosing(looks):
            async for event in looks:
                if event is None:
                    return
                self._viewer.event(event)

    async def _show_deltas(self, store: Store) -> None:
        entries = await read_deltas(store, self._run, self._last_delta)
        if entries:
            self._last_delta = entries[-1][0]
        for delta in self._deltas.admit(delta for _, delta in entries):
            self._viewer.delta(delta)
