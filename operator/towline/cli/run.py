"""`towline run`: one AgentRun on this machine, shown while it runs; the exit code tells how it ended."""

import argparse
import asyncio
import signal
import sys
import uuid
from pathlib import Path

from towline.cli import exits
from towline.cli.sanitize import printable
from towline.cli.sink import viewer as viewer_for
from towline.cli.store_option import add_store_option, at_home, store_path
from towline.cli.target import command, prompt_command
from towline.cli.terminal_input import Typed, at_a_terminal
from towline.cli.threaded import Threaded
from towline.local.launcher import Outcome, launch
from towline.local.order import read_manifest, take_order
from towline.local.plan import SANDBOX_UNAVAILABLE
from towline.local.source import source_uid
from towline.local.store import Folder
from towline.local.supervise import Stop
from towline.settings import LocalSettings

REASONS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGHUP: "HungUp"}
FLUSH_SECONDS = 5.0
MACHINE_REASONS = (SANDBOX_UNAVAILABLE, "SealFailed")

EPILOG = """\
exit codes:
  0    the run succeeded
  1    it failed, or was cancelled from elsewhere
  2    wrong input: a file, an option, a missing key
  3    this machine cannot: no user namespaces, the store does not start or is in use
  130  cancelled by Ctrl-C (a second one kills at once); 143 by SIGTERM, 129 by SIGHUP
  141  the reader of the output went away, and the run was cancelled

environment:
  ANTHROPIC_API_KEY, or OPENAI_API_KEY (and OPENAI_BASE_URL): run examples against that model; also the keys of
  ModelProviders that ask for one. TOWLINE_MODEL names the model. NO_COLOR turns colours off.
"""


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "run",
        help="run an agent on this machine",
        description="Run the AgentRun in FILE on this machine: the same harness, gateway and event log as in a "
        "cluster, and a sandbox in bubblewrap.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="YAML with an AgentRun, and the kinds it names"
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change a field of the run, such as spec.prompt='Say hello'; may be repeated",
    )
    parser.add_argument("--name", metavar="NAME", help="which run, when the files hold several")
    parser.add_argument(
        "--keep", action="store_true", help="keep events and workspace, for `towline tail` and `towline ls`"
    )
    add_store_option(parser)
    parser.add_argument("--json", action="store_true", help="one event a line, as in the log, and nothing else")
    parser.add_argument(
        "--verbose", action="store_true", help="show every event on a terminal; the processes log in detail"
    )
    parser.set_defaults(verb=run)


async def run(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    manifest = read_manifest(arguments.files, arguments.assignments, arguments.name)
    keep = store_path(arguments, settings) if arguments.keep or arguments.store else None
    source = await source_uid(manifest.run, manifest.namespace, keep)
    order = take_order(manifest, settings, uid=str(uuid.uuid4()), source_uid=source)
    cache = at_home(settings.cache_home, "XDG_CACHE_HOME") / "towline"
    typing = order.snapshot.interactive and not arguments.json and at_a_terminal()
    viewer = Threaded(
        viewer_for(
            json=arguments.json,
            verbose=arguments.verbose,
            no_color=bool(settings.no_color),
            ask=prompt_command(order.snapshot.name, arguments),
            typing=typing,
        )
    )
    lines: asyncio.Queue[str] = asyncio.Queue()
    for note in order.notes:
        print(f"towline: {printable(note)}", file=sys.stderr)
    stop, signals = Stop(), Signals()
    signals.install(stop, viewer)
    typed = Typed(viewer, lines.put_nowait) if typing else None
    try:
        outcome = await launch(
            order,
            viewer,
            stop,
            typed=lines,
            store=keep,
            cache=cache,
            trust=trust(settings),
            log_level="debug" if arguments.verbose else "info",
        )
    finally:
        if typed is not None:
            typed.close()
        viewer.close(FLUSH_SECONDS)
    code = exit_code(outcome, signals.first)
    if not viewer.wants_deltas or outcome.last_words:
        report(outcome)
    if keep is not None:
        print(f"towline: kept: {kept(keep, order.snapshot.uid, arguments)}", file=sys.stderr)
    return code


def kept(store: Path, uid: str, arguments: argparse.Namespace) -> str:
    """Where a kept run can be looked at."""
    workspace = Folder(store).volume(uid) / "workspace"
    return f"`{command('tail', uid, arguments)}`" + (f", workspace {workspace}" if workspace.exists() else "")


def trust(settings: LocalSettings) -> dict[str, str]:
    """The variables that name the machine's own certificate authorities, for the harness."""
    named = {"SSL_CERT_FILE": settings.ssl_cert_file, "SSL_CERT_DIR": settings.ssl_cert_dir}
    return {variable: value for variable, value in named.items() if value}


class Signals:
    """Turns signals into a stop; remembers the first, which decides the exit code."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None

    def install(self, stop: Stop, viewer: Threaded) -> None:
        """From now until the loop ends."""
        loop = asyncio.get_running_loop()
        for number in REASONS:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # under nohup, or in a script's background: whoever started us wants it ignored
            loop.add_signal_handler(number, self._on_signal, number, stop, viewer)

    def _on_signal(self, number: signal.Signals, stop: Stop, viewer: Threaded) -> None:
        self.first = self.first or number
        stop.request(REASONS[number])
        if not stop.impatient and viewer.fault is None:
            viewer.typed(None)
            viewer.note("cancelling; once more kills at once")


def exit_code(outcome: Outcome, stopped_by: signal.Signals | None) -> int:
    """The exit code of a run that has an outcome."""
    kind, data = outcome.terminal.type, outcome.terminal.payload
    if kind == "run.completed":
        return exits.OK
    if kind == "run.cancelled" and stopped_by is not None:
        return 128 + stopped_by
    if data.get("reason") in MACHINE_REASONS:
        return exits.MACHINE
    return exits.FAILED


def report(outcome: Outcome) -> None:
    """Says on stderr how the run ended, if it did not succeed; stdout may be a program's."""
    data = outcome.terminal.payload
    if outcome.terminal.type == "run.completed":
        return
    how = "was cancelled" if outcome.terminal.type == "run.cancelled" else "failed"
    reason = ": ".join(filter(None, (str(data.get("reason", "")), str(data.get("message") or ""))))
    print(printable(f"towline: the run {outcome.terminal.run.name} {how}: {reason}"), file=sys.stderr)
    if outcome.last_words:
        print(printable(outcome.last_words), file=sys.stderr)
