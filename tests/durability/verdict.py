"""The words of a sweep: a way to a point, a case to be played, what became of it, and what became of all."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from towline.testing.checker import Kind, Violation

KINDS: dict[str, Kind] = {
    "lost": "lost",
    "duplicated": "duplicated",
    "out of order": "out of order",
    "double executions": "executed twice",
    "terminals wrong": "terminal",
    "results wrong": "result",
    "histories invalid": "history",
    "prompts wrong": "prompt",
}


@dataclass(frozen=True)
class Way:
    """How a point is reached: which process of which scenario comes by, and how often when nothing disturbs it."""

    scenario: str
    number: int
    passes: int


@dataclass(frozen=True)
class Case:
    point: str
    seed: int
    first: bool = False
    """To be killed at the first pass, whichever the seed says: a disturbed run may come by fewer times."""


def armed_by(case: Case, way: Way, random: Random) -> str:
    """The failpoint as a process is told of it."""
    hit = random.randint(1, way.passes)
    return f"{case.point}:{1 if case.first else hit}"


@dataclass(frozen=True)
class Verdict:
    """What became of a case. `story` tells a person about a violation."""

    case: Case
    armed: str
    reached: bool
    violations: Sequence[Violation]
    seconds: float
    story: str = ""


@dataclass
class Tally:
    points: int
    verdicts: list[Verdict] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        case = verdict.case
        if not verdict.reached:
            print(f"not reached: {case.point} seed {case.seed} ({verdict.armed})")
        for violation in verdict.violations:
            print(f"VIOLATED {case.point} seed {case.seed} ({verdict.armed}): {violation}")
        if verdict.violations:
            print(verdict.story)
        sys.stdout.flush()

    @property
    def never_reached(self) -> list[str]:
        reached = {each.case.point for each in self.verdicts if each.reached}
        return sorted({each.case.point for each in self.verdicts} - reached)

    @property
    def good(self) -> bool:
        return not self.never_reached and not any(each.violations for each in self.verdicts)

    def line(self) -> str:
        found = Counter(violation.kind for each in self.verdicts for violation in each.violations)
        counts = {
            "points": self.points,
            "runs": len(self.verdicts),
            "kills": sum(each.reached for each in self.verdicts),
            **{name: found[kind] for name, kind in KINDS.items()},
            "armed but not reached": sum(not each.reached for each in self.verdicts),
            "points never reached": len(self.never_reached),
            "seconds": round(time.monotonic() - self.began),
        }
        return ", ".join(f"{name} {count}" for name, count in counts.items())
