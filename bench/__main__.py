"""`python -m bench`: measures what a laptop can, prints a table as it goes, and writes `results.json` beside this file.

The subjects that need a cluster run only when they are named (`make bench-operator`, `make bench-cluster`).

Exit code 0 even when a goal is missed: the table says so. Figures of subjects that are not measured this time are kept.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bench import (
    cluster,
    durability,
    gateway,
    harness_start,
    log,
    page,
    reconcile,
    run_latency,
    tail,
    toolcall,
    toolserver_start,
)
from bench.figure import Figure, rounded
from bench.proc import Usage, machine

SUBJECTS: dict[str, Callable[[bool], AsyncIterator[Figure]]] = {
    "toolcall": toolcall.measure,
    "gateway": gateway.measure,
    "log": log.measure,
    "tail": tail.measure,
    "harness_start": harness_start.measure,
    "toolserver_start": toolserver_start.measure,
    "run_latency": run_latency.measure,
    "durability": durability.measure,
    "operator": reconcile.measure,
    "cluster": cluster.measure,
}
NEED_CLUSTER = ("operator", "cluster")
RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure towline beside the alternatives.")
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, metavar="NAME", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples: does it run, not how fast is it")
    parser.add_argument("--output", type=Path, default=RESULTS, help="default: %(default)s")
    given = parser.parse_args()
    subjects = given.only or [name for name in SUBJECTS if name not in NEED_CLUSTER]
    entries = asyncio.run(measured(subjects, given.quick))
    kept = json.loads(given.output.read_text()) if given.output.exists() else []
    fresh = {entry["name"]: entry for entry in entries}
    merged = [fresh.pop(entry["name"], entry) for entry in kept] + list(fresh.values())
    given.output.write_text("[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in merged) + "\n]\n")
    if given.output == RESULTS:
        page.write(merged)


async def measured(subjects: list[str], quick: bool) -> list[dict[str, Any]]:
    """The entries of `results.json` for these subjects; each figure is printed as soon as it is known."""
    cores = Figure(name="machine_cores", value=os.cpu_count() or 0, unit="cores", samples=1, note=machine())
    print(f"{cores.note}{'; a quick run, too short for figures' if quick else ''}")
    entries = [cores.to_json()]
    for name in subjects:
        before = Usage.now()
        print(name, flush=True)
        figures = []
        async for figure in SUBJECTS[name](quick):
            print(f"  {figure.row()}", flush=True)
            figures.append(figure.to_json())
        others = rounded(Usage.now().others_since(before))
        print(f"  meanwhile others kept {others:.2f} cores busy", flush=True)
        entries += [{**entry, "cores_used_by_others": others} for entry in figures]
    return entries


if __name__ == "__main__":
    main()
