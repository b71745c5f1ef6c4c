"""`towline tail`: a run's events again, from any seq, and the ones still to come with -f. Kept, or of a cluster."""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from towline.cli.sink import viewer as viewer_for
from towline.cli.target import add_place_options, add_run_argument, prompt_command, target, through_changes
from towline.errors import Rewound
from towline.events.event import Event
from towline.events.notices import Notices
from towline.local.watch import Viewer, Watch, replay
from towline.settings import LocalSettings


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
        description="Show the events of a run of this machine, at work or kept, or of a cluster's. With --json they "
        "are the log's own lines, byte for byte.",
    )
    add_run_argument(parser)
    parser.add_argument(
        "--from", dest="from_seq", metavar="N", type=seq, default=1, help="start at the event with seq N"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="wait for further events until the run has ended")
    parser.add_argument("--json", action="store_true", help="one event a line, as in the log")
    parser.add_argument("--verbose", action="store_true", help="show every event on a terminal")
    add_place_options(parser)
    parser.set_defaults(verb=tail)


async def tail(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    counted = Counted(
        viewer_for(
            json=arguments.json,
            verbose=arguments.verbose,
            no_color=bool(settings.no_color),
            ask=prompt_command(arguments.run, arguments),
        ),
        arguments.from_seq,
    )
    await through_changes(lambda: _show(arguments, settings, counted), lambda: counted.next_seq)
    return 0


async def _show(arguments: argparse.Namespace, settings: LocalSettings, counted: "Counted") -> None:
    async with target(arguments, settings, verb="tail", patient=arguments.follow) as found:
        store, run = found.store, found.run
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

    def typed(self, text: str | None) -> None:
        self.inner.typed(text)
