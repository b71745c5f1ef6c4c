"""The table of docs/figures.md, written from the results so that the two cannot differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "figures.md"
MARK = "<!-- written by `python -m bench` from here -->"


def table(entries: Sequence[dict[str, Any]]) -> str:
    """A Markdown table, a row a figure."""
    rows = ["| figure | measured | goal | beside it | others | note |", "|---|---|---|---|---|---|"]
    for entry in entries:
        goal = entry.get("goal", "")
        verdict = "" if not goal or entry.get("met") else " **missed**"
        beside = entry.get("comparison")
        cells = [
            f"`{entry['name']}`",
            f"{entry['value']:g} {entry['unit']}",
            f"{goal.replace('<=', '≤').replace('>=', '≥')}{verdict}",
            f"`{beside['name']}` {beside['value']:g}" if beside else "",
            f"{entry['cores_used_by_others']:.1f}" if "cores_used_by_others" in entry else "",
            entry.get("note", ""),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write(entries: Sequence[dict[str, Any]]) -> None:
    """Replace what stands below the mark."""
    above = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{above}{MARK}\n\n{table(entries)}\n", encoding="utf-8")
