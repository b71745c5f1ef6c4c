"""`towline tail`: a run's events again, from any seq, and the ones still to come with -f. Kept, or of a cluster."""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from towline.cli import cluster
from towline.cli.sink import viewer as viewer_for
from towline.cli.store_option import add_store_option, store_path
from towline.errors import Rewound, StoreUnavailable
from towline.events.event import Event, RunRef
from towline.events.notices import Notices
from towline.events.store import Store
from towline.local.index import find, kept_runs
from towline.local.store import opened
from towline.local.watch import Viewer, Watch, replay
from towline.settings import LocalSettings

REOPENINGS = 5  # in a row, without a new event: then the store is broken, not changing hands


def seq(text: str) -> int:
    """A seq from 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "tail",
        help="show a run's events",
        description="Show the events of a kept run, or of a cluster's. With --json they are the log's own lines, byte "
        "for byte.",
    )
    parser.add_argument(
        "run", metavar="RUN", help="a run's name (the latest of that name), its uid, or the beginning of it"
    )
    parser.add_argument(
        "--from", dest="from_seq", metavar="N", type=seq, default=1, help="start at the event with seq N"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="wait for further events until the run has ended")
    add_store_option(parser)
    parser.add_argument("--json", action="store_true", help="one event a line, as in the log")
    parser.add_argument("--verbose", action="store_true", help="show every event on a terminal")
    cluster.add_cluster_options(parser)
    parser.set_defaults(verb=tail)


async def tail(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    counted = Counted(
        viewer_for(json=arguments.json, verbose=arguments.verbose, no_color=bool(settings.no_color)), arguments.from_seq
    )
    reopenings = 0
    while True:
        before = counted.next_seq
        try:
            await _show(arguments, settings, counted)
            return 0
        except StoreUnavailable:
            # The store changed hands: who served it has ended. Open it anew and go on where we were.
            reopenings = 1 if counted.next_seq > before else reopenings + 1
            if reopenings > REOPENINGS:
                raise


async def _show(arguments: argparse.Namespace, settings: LocalSettings, counted: "Counted") -> None:
    where = cluster.place(arguments, settings)
    source = cluster.found(where, arguments.run) if where is not None else _kept(arguments, settings)
    async with source as (store, run):
        arguments.run = run.uid  # the same run, should the store be opened anew
        if not arguments.follow:
            await replay(store, run, counted, counted.next_seq)
            return
        notices = Notices(store)
        try:
            while True:
                try:
                    await Watch(store, notices, run, counted, counted.next_seq).until_closed()
                    return
                except Rewound as fault:
                    print(f"towline: {fault}", file=sys.stderr)
                    counted.next_seq = fault.head + 1
        finally:
            await notices.aclose()


@asynccontextmanager
async def _kept(arguments: argparse.Namespace, settings: LocalSettings) -> AsyncIterator[tuple[Store, RunRef]]:
    async with opened(store_path(arguments, settings), verb="tail") as (store, _):
        yield store, find(await kept_runs(store), arguments.run).run


@dataclass(slots=True)
class Counted:
    """A viewer that remembers where it is."""

    inner: Viewer
    next_seq: int

    @property
    def wants_deltas(self) -> bool:
        return self.inner.wants_deltas

    def event(self, event: Event) -> None:
        self.inner.event(event)
        self.next_seq = event.seq + 1

    def delta(self, delta: Any) -> None:
        self.inner.delta(delta)

    def note(self, text: str) -> None:
        self.inner.note(text)
