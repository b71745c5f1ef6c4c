"""`towline prompt`: a further prompt for a run, on this machine or on a cluster; with --wait, its answer."""

import argparse
import asyncio
import sys
import uuid

from towline import inbox
from towline.cli import cluster, exits
from towline.cli.sanitize import one_line, printable
from towline.cli.target import Target, add_place_options, add_run_argument, target, through_changes, unattended
from towline.errors import Invalid, LogClosed
from towline.events.event import RunRef
from towline.settings import LocalSettings

EPILOG = """\
An interactive run that has answered waits for the next prompt; one that sleeps is woken by it. Prompts are taken
in order, each in a turn of its own. A prompt is answered, or refused: never taken and forgotten.

exit codes:
  0    the prompt is in the run's inbox; with --wait, it was answered
  1    the run has ended; with --wait, also when the answer was broken off
  2    wrong input: no such run, a prompt that is too long, a key that another prompt has
  3    this machine cannot: the store does not answer
  124  no answer within --timeout; the prompt stays in the inbox
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
    parser.add_argument("--wait", action="store_true", help="wait for the answer, and print it alone")
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="wait no longer than this")
    add_place_options(parser)
    parser.set_defaults(verb=prompt)


def seconds(text: str) -> float:
    """A time to wait."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


async def prompt(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    if not text.strip():
        raise Invalid("the prompt is empty; expected some words")
    if arguments.key is not None and not arguments.key:
        raise Invalid("--key is empty; expected any other text, the same for a repeat of the same prompt")
    if arguments.timeout is not None and not arguments.wait:
        raise Invalid("--timeout goes with --wait")
    arguments.key = arguments.key or uuid.uuid4().hex
    try:
        async with asyncio.timeout(arguments.timeout):
            # Begun again with the same key, it is the same prompt.
            return await through_changes(lambda: _prompt(arguments, settings, text), lambda: 0)
    except TimeoutError:
        print(f"towline: no answer within {arguments.timeout:g} s; the prompt stays in the inbox", file=sys.stderr)
        return exits.NO_REPLY


async def _prompt(arguments: argparse.Namespace, settings: LocalSettings, text: str) -> int:
    async with target(arguments, settings, verb="prompt", alive=True) as found:
        arguments.run = found.run.uid
        try:
            posted = await _post(found, text, arguments)
        except LogClosed as fault:
            code = say_ended(found.run, fault)
            print("towline: a new run with spec.continueFrom goes on from its history", file=sys.stderr)
            return code
        if found.standstill:
            why = one_line(found.standstill, cluster.MAX_NOTE_CHARACTERS)
            print(f"towline: the run takes prompts once it goes on ({why})", file=sys.stderr)
        if not arguments.wait:
            print(f"prompt {posted.number} is in the inbox of {found.run.name}")
            return exits.OK
        return say_reply(found.run, await inbox.wait_for_reply(found.store, found.run, posted.id))


async def _post(found: Target, text: str, arguments: argparse.Namespace) -> inbox.Prompt:
    refuse_unattended(found)
    return await inbox.post(found.store, found.run, text, key=arguments.key, delivery=arguments.delivery)


def say_reply(run: RunRef, reply: inbox.Reply) -> int:
    """The answer goes to stdout; what kept it from being whole, to stderr."""
    if reply.text:
        print(printable(reply.text))
    if reply.ended is not None and reply.ended.type != "run.completed":
        return say_ended(run, LogClosed(reply.ended.type))
    if reply.stop_reason == "interrupted":
        print("towline: the answer was interrupted", file=sys.stderr)
        return exits.FAILED
    return exits.OK


def refuse_unattended(found: Target) -> None:
    """A prompt that nobody would ever read is not taken."""
    if found.here is not None and found.here.interrupted:
        raise Invalid(unattended(found.run))


def say_ended(run: RunRef, fault: LogClosed) -> int:
    print(f"towline: the run {run.name} ({run.uid}) has ended: {fault.terminal}", file=sys.stderr)
    return exits.FAILED
