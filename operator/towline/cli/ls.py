"""`towline ls`: the runs of a kept store, as a table or as JSON lines."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime

from towline.cli.sanitize import one_line
from towline.cli.store_option import add_store_option, store_path
from towline.cli.text import age
from towline.clock import rfc3339, utc_now
from towline.local.index import Kept, kept_runs
from towline.local.store import Holder, exists, opened
from towline.settings import LocalSettings

OUTCOMES = {"run.completed": "Succeeded", "run.failed": "Failed", "run.cancelled": "Cancelled"}
HEADINGS = ("NAME", "UID", "PHASE", "TURNS", "CALLS", "TOKENS", "AGE")


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "ls", help="list the kept runs", description="List the runs of a kept store, oldest first."
    )
    add_store_option(parser)
    parser.add_argument("--json", action="store_true", help="one run a line, as JSON")
    parser.set_defaults(verb=ls)


async def ls(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    path = store_path(arguments, settings)
    if not exists(path):
        print(f"towline: no kept runs in {path}", file=sys.stderr)
        return 0
    async with opened(path, verb="ls") as (store, holder):
        runs = await kept_runs(store)
    if arguments.json:
        for kept in runs:
            print(json.dumps(as_json(kept, holder), ensure_ascii=False))
    else:
        print_table([HEADINGS, *(row(kept, holder, utc_now()) for kept in runs)])
    return 0


def phase(kept: Kept, holder: Holder | None) -> str:
    """The outcome; an open run is Running only if a launcher works on it, else it was Interrupted."""
    if kept.state.closed is not None:
        return OUTCOMES.get(kept.state.closed, kept.state.closed)
    return "Running" if holder is not None and holder.uid == kept.run.uid else "Interrupted"


def row(kept: Kept, holder: Holder | None, now: datetime) -> tuple[str, ...]:
    totals = kept.state.totals
    return (
        one_line(kept.run.name, 63),
        kept.run.uid,
        phase(kept, holder),
        str(totals.turns),
        str(totals.tool_calls),
        f"{totals.input_tokens + totals.output_tokens:,}",
        age((now - kept.started).total_seconds()) if kept.started else "?",
    )


def as_json(kept: Kept, holder: Holder | None) -> dict[str, object]:
    totals = kept.state.totals
    return {
        "name": kept.run.name,
        "namespace": kept.run.namespace,
        "uid": kept.run.uid,
        "phase": phase(kept, holder),
        "turns": totals.turns,
        "tool_calls": totals.tool_calls,
        "input_tokens": totals.input_tokens,
        "output_tokens": totals.output_tokens,
        "cost_micro_usd": totals.cost_micro_usd,
        "events": kept.state.head,
        "started": rfc3339(kept.started) if kept.started else None,
        "last_event": rfc3339(kept.last_event) if kept.last_event else None,
    }


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the last one is not padded."""
    widths = [max(len(each[column]) for each in rows) for column in range(len(rows[0]))]
    for each in rows:
        line = "   ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
