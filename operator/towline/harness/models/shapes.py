"""What a provider's JSON must look like where it enters, and the one guard around code that takes it apart.

Used by both adapters, whose contract is that an answer of any shape ends in `Finished` or in a ModelFault: a provider,
or a proxy before it, must not be able to crash a harness. Pure.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from towline.harness.models.base import ModelProtocolError

MAX_TOKENS = 10**12
"""Of one request, far beyond any: the sums of a run have 64 bits."""


@contextmanager
def well_shaped(what: str) -> Iterator[None]:
    """Whatever taking apart JSON of another shape raises leaves as ModelProtocolError; `what` was taken apart."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        raise ModelProtocolError(f"malformed {what}: {type(fault).__name__}") from None


def text(value: Any) -> str:
    """The text that `value` is; an absent one is empty. Raises TypeError for anything else."""
    if not isinstance(value, str | None):
        raise TypeError(f"{type(value).__name__} in the place of a text")
    return value or ""


def token_count(value: Any) -> int:
    """The number of tokens that `value` is; an absent one is 0. Raises for what can be none."""
    tokens = int(value or 0)
    if not 0 <= tokens <= MAX_TOKENS:
        raise ValueError(f"{tokens} tokens")
    return tokens
