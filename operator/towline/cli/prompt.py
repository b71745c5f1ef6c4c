"""`towline prompt`: a further prompt for a run, on this machine or on a cluster; with --wait, its answer."""

import argparse
import asyncio
import io
import shlex
import sys
import uuid
from dataclasses import dataclass

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
  2    wrong input: no such run, a prompt that is too long, a key that another prompt has; or a refusal of the cluster's
  3    this machine cannot: the store, or the cluster's API server, does not answer
  124  no answer within --timeout. The prompt stays in the inbox; or it may not have arrived, which is said, with the
       --key that makes a repeat harmless
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
    text = _from_stdin() if arguments.text == "-" else arguments.text
    if not text.strip():
        raise Invalid("the prompt is empty; expected some words")
    if arguments.key is not None and not arguments.key:
        raise Invalid("--key is empty; expected any other text, the same for a repeat of the same prompt")
    if arguments.timeout is not None and not arguments.wait:
        raise Invalid("--timeout goes with --wait")
    sending = Sending(text, arguments.key or uuid.uuid4().hex, arguments.delivery)
    try:
        async with asyncio.timeout(arguments.timeout):
            # Begun again with the same key, it is the same prompt.
            return await through_changes(lambda: _prompt(arguments, settings, sending), lambda: int(sending.arrived))
    except TimeoutError:
        print(f"towline: no answer within {arguments.timeout:g} s; {sending.whereabouts}", file=sys.stderr)
        return exits.NO_REPLY


def _from_stdin() -> str:
    if sys.stdin is None:  # closed by whoever started us
        raise Invalid("the prompt is to come from stdin, which is closed")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # in a plain locale Python would let anything pass
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as fault:
        raise Invalid(f"the prompt on stdin is no text in {fault.encoding}: {fault.reason}") from None


@dataclass(slots=True)
class Sending:
    """A prompt on its way; `arrived` once it is known to be in the inbox."""

    text: str
    key: str
    delivery: str
    arrived: bool = False

    @property
    def whereabouts(self) -> str:
        if self.arrived:
            return "the prompt stays in the inbox"
        return f"the prompt may not have arrived: again, with --key {shlex.quote(self.key)}, is harmless"


async def _prompt(arguments: argparse.Namespace, settings: LocalSettings, sending: Sending) -> int:
    async with target(arguments, settings, verb="prompt", alive=True) as found:
        arguments.run = found.run.uid
        try:
            posted = await _post(found, sending)
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


async def _post(found: Target, sending: Sending) -> inbox.Prompt:
    refuse_unattended(found)
    posted = await inbox.post(found.store, found.run, sending.text, key=sending.key, delivery=sending.delivery)
    sending.arrived = True
    return posted


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
