"""`towline prompt`: a further prompt for a run, on this machine or on a cluster; with --wait, its answer."""

import argparse
import sys
import uuid

from towline import inbox
from towline.cli import exits
from towline.cli.target import Target, add_place_options, add_run_argument, target
from towline.errors import Invalid, LogClosed
from towline.events.event import RunRef
from towline.settings import LocalSettings

EPILOG = """\
An interactive run that has answered waits for the next prompt; one that sleeps is woken by it. Prompts are taken
in order, each in a turn of its own. A prompt is answered, or refused: never taken and forgotten.

exit codes:
  0    the prompt is in the run's inbox
  1    the run has ended
  2    wrong input: no such run, a prompt that is too long, a key that another prompt has
  3    this machine cannot: the store does not answer
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "prompt",
        help="talk to a run",
        description="Give a run a further prompt: one of this machine, at work, or one of a cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_argument(parser)
    parser.add_argument("text", metavar="TEXT", help="the prompt; - reads it from stdin")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--steer",
        dest="delivery",
        action="store_const",
        const="steer",
        default="queue",
        help="into the running turn, before its next model request",
    )
    how.add_argument(
        "--interrupt",
        dest="delivery",
        action="store_const",
        const="interrupt",
        help="break the running turn off: the answer and the command that are under way end",
    )
    parser.add_argument(
        "--key", metavar="KEY", help="makes a repeat harmless: the same key is the same prompt (default: a new one)"
    )
    add_place_options(parser)
    parser.set_defaults(verb=prompt)


async def prompt(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    if not text.strip():
        raise Invalid("the prompt is empty; expected some words")
    if arguments.key is not None and not arguments.key:
        raise Invalid("--key is empty; expected any other text, the same for a repeat of the same prompt")
    key = arguments.key or uuid.uuid4().hex
    async with target(arguments, settings, verb="prompt", alive=True) as found:
        refuse_unattended(found)
        try:
            posted = await inbox.post(found.store, found.run, text, key=key, delivery=arguments.delivery)
        except LogClosed as fault:
            return say_ended(found.run, fault)
    print(f"prompt {posted.id.partition('-')[0]} is in the inbox of {found.run.name}")
    return exits.OK


def refuse_unattended(found: Target) -> None:
    """A prompt that nobody would ever read is not taken."""
    if found.here is not None and found.here.open and not found.here.worked_on:
        raise Invalid(
            f"nobody works on the run {found.run.name} ({found.run.uid}): its `towline run` was killed; "
            "start a new one with spec.continueFrom, which goes on from its history"
        )


def say_ended(run: RunRef, fault: LogClosed) -> int:
    print(f"towline: the run {run.name} ({run.uid}) has ended: {fault.terminal}", file=sys.stderr)
    return exits.FAILED
