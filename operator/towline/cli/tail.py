"""`towline tail`: a run's events again, from any seq, and the ones still to come with -f. Kept, or of a cluster."""

import argparse
import sys

from towline.cli import exits
from towline.cli.sink import viewer as viewer_for
from towline.cli.target import (
    Target,
    add_place_options,
    add_run_argument,
    prompt_command,
    target,
    through_changes,
    unattended,
)
from towline.errors import Rewound
from towline.events.notices import Notices
from towline.local.watch import Viewer, Watch
from towline.settings import LocalSettings

EPILOG = """\
exit codes:
  0    everything was shown, however the run ended
  1    the run has no end to wait for: its launcher was killed
  2    wrong input: no such run; or a refusal of the cluster's
  3    this machine cannot: the store, or the cluster's API server, does not answer; or the store has ended with the
       launcher of a run that is not kept
"""


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
        description="Show the events of a run of this machine, at work or kept, or of a cluster's.\n"
        "With --json they are the log's own lines, byte for byte.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    viewer = viewer_for(
        json=arguments.json,
        verbose=arguments.verbose,
        no_color=bool(settings.no_color),
        ask=prompt_command(arguments.run, arguments),
    )
    showing = Showing(viewer, arguments.from_seq)
    return await through_changes(lambda: _show(arguments, settings, showing), lambda: showing.progress)


async def _show(arguments: argparse.Namespace, settings: LocalSettings, showing: "Showing") -> int:
    async with target(arguments, settings, verb="tail", patient=arguments.follow) as found:
        arguments.run = found.run.uid  # the same run, should the store be opened anew
        interrupted = found.here is not None and found.here.interrupted
        await showing.show(found, follow=arguments.follow and not interrupted)
        if arguments.follow and interrupted:
            print(f"towline: interrupted: {unattended(found.run)}", file=sys.stderr)
            return exits.FAILED
        return exits.OK


class Showing:
    """One run on its way to a viewer, over any number of openings of its store."""

    def __init__(self, viewer: Viewer, from_seq: int) -> None:
        self._viewer, self._from_seq = viewer, from_seq
        self._watch: Watch | None = None

    @property
    def progress(self) -> int:
        """Rises when the run was found, and with each event."""
        return self._watch.next_seq if self._watch is not None else 0

    async def show(self, found: Target, *, follow: bool) -> None:
        """Shows what comes until the run has ended, or else what is there. Raises Gap or StoreUnavailable."""
        watch = self._watch = self._watch or Watch(found.run, self._viewer, self._from_seq)
        notices = Notices(found.store)
        try:
            while True:
                try:
                    if follow:
                        await watch.until_closed(found.store, notices)
                    else:
                        await watch.until_head(found.store, notices)
                    return
                except Rewound as loss:
                    print(f"towline: {self._words(loss)}", file=sys.stderr)
        finally:
            await notices.aclose()

    def _words(self, loss: Rewound) -> str:
        again = f"what comes is shown from event {loss.head + 1} on"
        if loss.head + 1 < self._from_seq:  # a loss that came before us, or a slip of the pen
            return f"the log has no event {self._from_seq - 1}: {again}"
        return f"{loss}; {again}"
