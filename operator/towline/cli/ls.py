"""`towline ls`: the runs of this machine, or of a cluster's namespace, as a table or as JSON lines."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime

from towline.cli import cluster
from towline.cli.sanitize import one_line
from towline.cli.store_option import add_store_option, store_path
from towline.cli.text import age
from towline.clock import rfc3339, utc_now
from towline.local.here import Here, runs_here
from towline.settings import LocalSettings

OUTCOMES = {"run.completed": "Succeeded", "run.failed": "Failed", "run.cancelled": "Cancelled"}
HEADINGS = ("NAME", "UID", "PHASE", "TURNS", "CALLS", "TOKENS", "AGE")


def add_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "ls",
        help="list the runs",
        description="List the runs of this machine, at work or kept, or of a namespace, oldest first.",
    )
    add_store_option(parser)
    parser.add_argument("--json", action="store_true", help="one run a line, as JSON")
    cluster.add_cluster_options(parser)
    parser.set_defaults(verb=ls)


async def ls(arguments: argparse.Namespace, settings: LocalSettings) -> int:
    where = cluster.place(arguments, settings)
    if where is not None:
        await _ls_cluster(where, as_lines=arguments.json)
        return 0
    path = store_path(arguments, settings)
    async with runs_here(path, verb="ls", unkept=arguments.store is None) as here:
        runs = here.runs
        rows = [row(each, utc_now()) for each in runs]
        lines = [json.dumps(as_json(each), ensure_ascii=False) for each in runs]
    if not runs:
        print(f"towline: no run is at work here, and none is kept in {path}", file=sys.stderr)
    elif arguments.json:
        print("\n".join(lines))
    else:
        print_table([HEADINGS, *rows])
    return 0


async def _ls_cluster(where: cluster.Place, *, as_lines: bool) -> None:
    """Without the event store: the status has what a list shows."""
    async with cluster.api(where) as (kube, namespace):
        runs = await cluster.runs(kube, namespace)
    if as_lines:
        for run in runs:
            print(json.dumps(cluster_json(run), ensure_ascii=False))
    else:
        print_table([HEADINGS, *(cluster_row(run, utc_now()) for run in runs)])


def cluster_row(run: cluster.Object, now: datetime) -> tuple[str, ...]:
    """A row of the same table, from an AgentRun."""
    metadata, status = run["metadata"], run.get("status") or {}
    usage = status.get("usage") or {}
    return (
        metadata["name"],
        metadata["uid"],
        shown(status.get("phase") or "Pending", asleep(run)),
        str(status.get("turns", 0)),
        str(status.get("toolCalls", 0)),
        f"{usage.get('totalTokens', 0):,}",
        age((now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()),
    )


def cluster_json(run: cluster.Object) -> dict[str, object]:
    """The same members as for a kept run."""
    metadata, status = run["metadata"], run.get("status") or {}
    usage = status.get("usage") or {}
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
        "phase": status.get("phase") or "Pending",
        "asleep": asleep(run),
        "turns": status.get("turns", 0),
        "tool_calls": status.get("toolCalls", 0),
        "input_tokens": usage.get("inputTokens", 0),
        "output_tokens": usage.get("outputTokens", 0),
        "cost_micro_usd": usage.get("costMicroUSD", 0),
        "events": (status.get("stream") or {}).get("lastSeq", 0),
        "started": status.get("startTime"),
        "last_event": status.get("lastActivityTime"),
    }


def phase(here: Here) -> str:
    """The outcome; an open run that no launcher works on was interrupted."""
    state = here.kept.state
    if state.closed is not None:
        return OUTCOMES.get(state.closed, state.closed)
    if not here.worked_on:
        return "Interrupted"
    if state.cancel is not None:
        return "Cancelling"
    return "InputRequired" if state.waiting and not state.unread else "Running"


def asleep(run: cluster.Object) -> bool:
    """Whether a run of a cluster waits without a harness."""
    conditions = (run.get("status") or {}).get("conditions") or []
    return any(each["type"] == "HarnessReady" and each["reason"] == "Asleep" for each in conditions)


def shown(phase: str, asleep: bool) -> str:
    """The phase in a table."""
    return f"{phase},Asleep" if asleep else phase


def row(here: Here, now: datetime) -> tuple[str, ...]:
    totals, started = here.kept.state.totals, here.kept.started
    return (
        one_line(here.run.name, 63),
        here.run.uid,
        shown(phase(here), here.asleep),
        str(totals.turns),
        str(totals.tool_calls),
        f"{totals.input_tokens + totals.output_tokens:,}",
        age((now - started).total_seconds()) if started else "?",
    )


def as_json(here: Here) -> dict[str, object]:
    kept, totals = here.kept, here.kept.state.totals
    return {
        "name": kept.run.name,
        "namespace": kept.run.namespace,
        "uid": kept.run.uid,
        "phase": phase(here),
        "asleep": here.asleep,
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
