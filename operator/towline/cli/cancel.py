"""`towline cancel`: ends a run, on this machine or on a cluster, as cancelled."""

import argparse
import sys

from towline.cli import cluster, exits
from towline.cli.prompt import say_ended
from towline.cli.target import Target, add_place_options, add_run_argument, target
from towline.clock import utc_now
from towline.errors import LogClosed
from towline.events import runs
from towline.events.event import draft
from towline.events.log import EventLog
from towline.settings import LocalSettings

REASON = "Cancelled"
MAX_REASON_CHARACTERS = 1024

EPILOG = """\
Whatever the run is doing is broken off: the model's answer, the command in the sandbox with all that it started. The
verb asks and returns; the run's one last event follows within seconds.

exit codes:
  0    the run is being cancelled
  1    it had ended already
  2    wrong input: no such run; or a refusal of the cluster's
  3    this machine cannot: the store, or the cluster's API server, does not answer
"""


def reason(text: str) -> str:
    """Words for the record."""
    if not text.strip() or len(text) > MAX_REASON_CHARACTERS:
        raise argparse.ArgumentTypeError(f"has {len(text)} characters; expected 1 to {MAX_REASON_CHARACTERS}")
    return text


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "cancel",
        help="end a run",
        description="Cancel a run: one of this machine, or of a cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_argument(parser)
    parser.add_argument("--reason", metavar="TEXT", type=reason, default=REASON, help="why, for the record")
    add_place_options(parser)
    parser.set_defaults(verb=cancel)


async def cancel(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    where = cluster.place(arguments, settings)
    if where is not None:
        name, ended = await cluster.cancel(where, arguments.run, arguments.reason)
        if ended:
            print(f"towline: the run {name} has ended: {ended}", file=sys.stderr)
            return exits.FAILED
    else:
        async with target(arguments, settings, verb="cancel", alive=True) as found:
            name = found.run.name
            try:
                await _cancel_here(found, arguments.reason)
            except LogClosed as fault:
                return say_ended(found.run, fault)
    print(f"cancelling {name}")
    return exits.OK


async def _cancel_here(found: Target, why: str) -> None:
    """Asks the run's launcher; writes the end of a run that has none, as nobody else will. Raises LogClosed."""
    store, run = found.store, found.run
    asked = await runs.request_cancel(store, run, why)
    state = await EventLog(store, run).state()
    if not asked:
        raise LogClosed(state.closed or "")
    if found.here is not None and not found.here.worked_on:
        last = draft("run.cancelled", {"reason": state.cancel or why}, now=utc_now())
        await runs.finish(store, run, state.epoch + 1, last)
