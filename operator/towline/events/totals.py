"""The running totals of a run: what an append adds, and the sums that stand in `meta`. Pure."""

from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True, slots=True)
class Totals:
    """Increments or sums, by place: all are whole numbers, cost in millionths of a US dollar."""

    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cost_micro_usd: int = 0
    prompts: int = 0
    """Prompts taken from the inbox; the run's own is not among them."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def values(self) -> tuple[int, ...]:
        """In the order of FIELDS, which is the order the scripts take."""
        return (
            self.turns,
            self.tool_calls,
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cost_micro_usd,
            self.prompts,
        )


NOTHING = Totals()

FIELDS: tuple[str, ...] = tuple(field.name for field in fields(Totals))
"""The names of the sums in the `meta` hash."""
