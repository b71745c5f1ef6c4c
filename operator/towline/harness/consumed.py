"""Which prompts a run has taken, in a compact form: all up to a number, and others singly.

Part of the history, so that a prompt is taken once however often its harness dies. A set and not a cursor, because a
steering prompt goes before an older one that waits for its own turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

OWN_PROMPT_ID = "0-0"
"""Prompt id of the prompt in the run's spec; those of the inbox start at 1-0."""


def number_of(prompt_id: str) -> int:
    return int(prompt_id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Consumed:
    """By number; the run's own prompt is number 0."""

    upto: int = -1
    """Every prompt up to this one; -1: not even the run's own."""
    singles: frozenset[int] = frozenset()
    """Taken ones above `upto`."""

    def __contains__(self, number: int) -> bool:
        return number <= self.upto or number in self.singles

    def with_prompt(self, number: int) -> "Consumed":
        """A prompt of the inbox is only taken when the run's own has been, or when there is none."""
        upto, singles = max(self.upto, 0), self.singles | {number}
        while upto + 1 in singles:
            upto += 1
        return Consumed(upto, frozenset(each for each in singles if each > upto))

    @property
    def count(self) -> int:
        """How many prompts of the inbox are among them."""
        return max(self.upto, 0) + len(self.singles)

    @property
    def last(self) -> int:
        """The highest number taken, at least 0."""
        return max((self.upto, 0, *self.singles))

    def as_list(self) -> list[int]:
        """As it stands in `context.compacted`."""
        return [self.upto, *sorted(self.singles)]

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> "Consumed":
        """The inverse of `as_list`."""
        return cls(numbers[0], frozenset(numbers[1:]))


NOTHING_CONSUMED = Consumed()
