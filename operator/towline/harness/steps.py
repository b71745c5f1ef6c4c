"""What comes next, decided from the history alone: so a resumed run takes the very step that the dead one would have.

Called by the loop before everything it does. Pure.
"""

from dataclasses import dataclass

from towline.api.snapshot import Limits, Price
from towline.events.totals import Totals
from towline.harness.fold import History
from towline.harness.models.base import Usage
from towline.harness.transcript import AssistantMessage, ToolUse

MAX_ATTEMPTS = 4
"""One request and three repeats."""

MAX_RETRY_AFTER_SECONDS = 120.0
"""A provider may ask for more patience than this; then the next attempt tells whether it meant it."""


@dataclass(frozen=True, slots=True)
class TakePrompt:
    """Between turns: take the next prompt, or rest when there is none."""


@dataclass(frozen=True, slots=True)
class AskModel:
    """The history ends with a prompt, or with the results of all tool uses."""


@dataclass(frozen=True, slots=True)
class CallTools:
    """The model asked for tools; `uses` have no result yet."""

    uses: tuple[ToolUse, ...]


@dataclass(frozen=True, slots=True)
class CompleteTurn:
    """The model answered without asking for tools."""

    stop_reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The run cannot go on. `reason` is one word of the closed list in docs/harness.md."""

    reason: str
    message: str


Step = TakePrompt | AskModel | CallTools | CompleteTurn | Fail


def next_step(history: History, limits: Limits) -> Step:
    """The one step that the history calls for."""
    if not history.turn_open:
        return TakePrompt()
    answer = history.last_answer
    if answer is not None and (not answer.tool_uses or answer.open_calls):
        return _after_answer(answer, history, limits)
    return spent(history.totals, limits) or AskModel()


def _after_answer(answer: AssistantMessage, history: History, limits: Limits) -> Step:
    if answer.stop_reason == "refusal":
        return Fail("ModelRefused", f"the model refused to answer: {answer.text[:400] or 'it gave no explanation'}")
    if answer.stop_reason == "max_tokens":
        # Half an answer is no result, and half an argument list must not be executed.
        return Fail("OutputTruncated", "the answer reached the model's maxOutputTokens and is incomplete")
    if answer.open_calls:
        return _too_many_calls(history, limits) or CallTools(answer.open_calls)
    if not answer.text.strip():
        return Fail("EmptyAnswer", "the model answered with neither text nor a tool use")
    return CompleteTurn(answer.stop_reason)


def spent(totals: Totals, limits: Limits) -> Fail | None:
    """The budget of tokens or cost that is used up, if any: then no further request is made."""
    budgets = (
        ("InputTokenLimitReached", "maxInputTokens", totals.input_tokens, limits.max_input_tokens),
        ("OutputTokenLimitReached", "maxOutputTokens", totals.output_tokens, limits.max_output_tokens),
        ("CostLimitReached", "maxCostMicroUSD", totals.cost_micro_usd, limits.max_cost_micro_usd),
    )
    for reason, name, used, limit in budgets:
        if limit is not None and used >= limit:
            return Fail(reason, f"limits.{name} is {limit}; the run has used {used}")
    return None


def too_many_turns(totals: Totals, limits: Limits) -> Fail | None:
    """Checked when a prompt waits, before its turn starts."""
    if limits.max_turns is None or totals.turns < limits.max_turns:
        return None
    return Fail("TurnLimitReached", f"limits.maxTurns is {limits.max_turns}; the run has had {totals.turns}")


def _too_many_calls(history: History, limits: Limits) -> Fail | None:
    """A message's tool uses are made all or none: never one call more than the limit."""
    asked = len(history.open_calls) - len(history.claimed)
    limit, made = limits.max_tool_calls, history.totals.tool_calls
    if limit is None or made + asked <= limit:
        return None
    message = f"limits.maxToolCalls is {limit}; the run has made {made} and asks for {asked} more"
    return Fail("ToolCallLimitReached", message)


def cost_micro_usd(usage: Usage, price: Price) -> int:
    """Rounded to the nearest micro-USD for each request; cached input has its own price."""
    fresh = usage.input_tokens - usage.cached_input_tokens
    millionths = fresh * price.input_micro_usd + usage.cached_input_tokens * price.cached_input_micro_usd
    return (millionths + usage.output_tokens * price.output_micro_usd + 500_000) // 1_000_000


def retry_delay_seconds(attempt: int, retry_after_seconds: float | None) -> float | None:
    """The pause after failed attempt number `attempt` (the first is 1); None when it was the last."""
    if attempt >= MAX_ATTEMPTS:
        return None
    return max(float(2 ** (attempt - 1)), min(retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS))
