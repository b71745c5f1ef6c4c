"""Entry of the `towline` command: arguments, settings, and what the errors of every verb mean to a person.

Each verb has a file of its own beside this one: `run`, `tail`, `ls`, `prompt`, `cancel`.
"""

import argparse
import asyncio
import io
import os
import sys
from collections.abc import Sequence

from towline import __version__
from towline.cli import cancel, diagnostics, exits, ls, prompt, run, tail
from towline.cli.sanitize import printable
from towline.errors import Invalid, StoreUnavailable, TowlineError
from towline.kube.errors import Refused, TooMany, Unreachable
from towline.local.faults import MachineCannot, StoreInUse
from towline.settings import LocalSettings, read


def parser() -> argparse.ArgumentParser:
    """The command line of `towline`."""
    towline = argparse.ArgumentParser(
        prog="towline", description="Run AI agents with the harness outside the sandbox, here on this machine."
    )
    towline.add_argument("--version", action="version", version=f"towline {__version__}")
    verbs = towline.add_subparsers(metavar="VERB", required=True)
    for verb in (run, tail, ls, prompt, cancel):
        verb.add_parser(verbs)
    return towline


def main(words: Sequence[str] | None = None) -> int:
    """Run the verb named on the command line; returns the exit code."""
    _prepare_streams()
    arguments = parser().parse_args(words)
    diagnostics.configure(verbose=getattr(arguments, "verbose", False))
    try:
        code: int = asyncio.run(arguments.verb(arguments, read(LocalSettings)))
        sys.stdout.flush()
        return code
    except Invalid as fault:
        return _say(fault.problems, exits.USAGE)
    except (MachineCannot, StoreInUse, StoreUnavailable) as fault:
        return _say([str(fault)], exits.MACHINE)
    except (Unreachable, TooMany) as fault:
        return _say([f"the API server of the cluster: {fault}"], exits.MACHINE)
    except Refused as fault:
        return _say([f"the API server of the cluster: {fault}"], exits.USAGE)
    except TowlineError as fault:
        return _say([str(fault)], exits.FAILED)
    except BrokenPipeError:
        # What is still buffered must not be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exits.BROKEN_PIPE
    except KeyboardInterrupt:
        return exits.INTERRUPTED


def _prepare_streams() -> None:
    """Somewhere to write to, whatever we were started with (`>&-`), and in whatever encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(sentences: Sequence[str], code: int) -> int:
    for sentence in sentences:
        print(f"towline: {printable(sentence)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
