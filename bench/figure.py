"""One measured number: its goal, what it is compared with, and how both are written down. Pure.

Every subject yields these; `__main__.py` prints them and writes them to `results.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound out of the design, §10."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`comparison` is (name, value) of another way to the same end, in the same unit and from the same run."""

    name: str
    value: float
    unit: str
    samples: int
    goal: Goal | None = None
    comparison: tuple[str, float] | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": self.name, "value": rounded(self.value), "unit": self.unit}
        if self.goal is not None:
            entry |= {"goal": str(self.goal), "met": self.goal.met(self.value)}
        if self.comparison is not None:
            name, value = self.comparison
            entry["comparison"] = {"name": name, "value": rounded(value)}
        entry["samples"] = self.samples
        return entry | ({"note": self.note} if self.note else {})

    def row(self) -> str:
        """A line of the table."""
        goal = verdict = beside = ""
        if self.goal is not None:
            goal, verdict = str(self.goal), "ok" if self.goal.met(self.value) else "MISSED"
        if self.comparison is not None:
            beside = f"{self.comparison[0]} {rounded(self.comparison[1]):g}"
        return f"{self.name:40} {rounded(self.value):>10g} {self.unit:14} {goal:>10} {verdict:6}  {beside}".rstrip()


def rounded(value: float) -> float:
    """Four significant digits; more would be noise."""
    return float(f"{value:.4g}")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that is not exceeded by `share` of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def milliseconds(seconds: float) -> float:
    return seconds * 1000


def spread(seconds: Sequence[float]) -> str:
    """Median and 99th percentile, for a note."""
    return f"{milliseconds(median(seconds)):.2f}/{milliseconds(quantile(seconds, 0.99)):.2f} ms"
