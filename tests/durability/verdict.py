"""The words of a sweep: a way to a point, a case to be played, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from towline.testing.checker import Violation


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


@dataclass(frozen=True)
class Verdict:
    """What became of a case. `story` tells a person about a violation."""

    case: Case
    armed: str
    reached: bool
    violations: Sequence[Violation]
    seconds: float
    story: str = ""
