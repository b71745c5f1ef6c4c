"""What comes next, decided from history and inbox alone: so a resumed run takes the step that the dead one would have.

Called by the loop before everything it does. Pure.
"""

from dataclasses import dataclass

from towline.api.snapshot import IdlePolicy, Limits, Price, Snapshot
from towline.events.totals import Totals
from towline.harness.compaction import Cut, cut_for
from towline.harness.consumed import OWN_PROMPT_ID
from towline.harness.fold import History
from towline.harness.models.base import Usage
from towline.harness.sizes import window_for
from towline.harness.transcript import AssistantMessage, ToolUse
from towline.inbox import Prompt

LONGEST_PAUSE_SECONDS = 60.0

STEERS_AT_ONCE = 16
"""Prompts taken with one append: a prompt has up to 256 KiB, an append is one command to the store."""

SUSPEND_AFTER_SECONDS = 60.0
"""How long a harness waits for a prompt when the run's idlePolicy does not say."""

CLOCK_SKEW_SECONDS = 3.0
"""A run that is due to finish so soon is not put to sleep before: whoever woke it for that goes by another clock."""

MAX_RETRY_AFTER_SECONDS = 120.0
"""A provider may ask for more patience than this; then the next attempt tells whether it meant it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The prompts that no turn has taken, in order, the run's own first.

    Of those with delivery `queue` only the first needs to be there.
    """

    prompts: tuple[Prompt, ...] = ()
    seen: int = 0
    """Number of the last prompt that the inbox held, taken or not."""

    @property
    def interrupt(self) -> Prompt | None:
        return next((prompt for prompt in self.prompts if prompt.delivery == "interrupt"), None)

    @property
    def steers(self) -> tuple[Prompt, ...]:
        return tuple(prompt for prompt in self.prompts if prompt.delivery == "steer")[:STEERS_AT_ONCE]

    @property
    def next(self) -> Prompt | None:
        """What the next turn starts with: the run's own prompt before all, then interruptions, then in order."""
        first = self.prompts[0] if self.prompts else None
        return first if first is None or first.id == OWN_PROMPT_ID else self.interrupt or first


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Between turns: with this prompt the next one starts."""

    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Rest:
    """Between turns, and no prompt is left: an interactive run waits, another ends."""

    seen: int


@dataclass(frozen=True, slots=True)
class TakeSteers:
    """Put these prompts into the running turn."""

    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class AskModel:
    """The history ends with a prompt, or with the results of all tool uses."""


@dataclass(frozen=True, slots=True)
class Compact:
    """As AskModel, but the history comes near the model's bounds: summarise its beginning first."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class CallTools:
    """The model asked for tools; `uses` have no result yet."""

    uses: tuple[ToolUse, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A person wants the running turn to end: `uses` shall not run, or no longer."""

    uses: tuple[ToolUse, ...]


@dataclass(frozen=True, slots=True)
class CompleteTurn:
    """The model answered without asking for tools, or was interrupted."""

    stop_reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The run cannot go on. `reason` is one word of the closed list in docs/harness.md."""

    reason: str
    message: str


Step = StartTurn | Rest | TakeSteers | AskModel | Compact | CallTools | Interrupt | CompleteTurn | Fail


def next_step(history: History, snapshot: Snapshot, pending: Pending) -> Step:
    """The one step that history and inbox call for."""
    if not history.turn_open:
        return _between_turns(history, snapshot.limits, pending)
    answer = history.last_answer
    if answer is not None and (not answer.tool_uses or answer.open_calls):
        return _after_answer(answer, history, snapshot.limits, pending)
    if pending.interrupt is not None:
        return Interrupt(())
    if pending.steers:
        return TakeSteers(pending.steers)
    if failure := spent(history.totals, snapshot.limits):
        return failure
    cut = cut_for(history, window_for(snapshot))
    return AskModel() if cut is None else Compact(cut)


def _between_turns(history: History, limits: Limits, pending: Pending) -> Step:
    if (prompt := pending.next) is None:
        return Rest(pending.seen)
    return too_many_turns(history.totals, limits) or StartTurn(prompt)


def _after_answer(answer: AssistantMessage, history: History, limits: Limits, pending: Pending) -> Step:
    if answer.stop_reason == "interrupted":
        return CompleteTurn("interrupted")
    if failure := stopped_short(answer.stop_reason, answer.text):
        return failure
    if answer.open_calls:
        if pending.interrupt is not None:
            return Interrupt(answer.open_calls)
        return _too_many_calls(history, limits) or CallTools(answer.open_calls)
    if not answer.text.strip():
        return Fail("EmptyAnswer", "the model answered with neither text nor a tool use")
    # An answer that is complete needs no interruption; the interrupting prompt's turn is the next anyway.
    if pending.steers and pending.interrupt is None:
        return TakeSteers(pending.steers)
    return CompleteTurn(answer.stop_reason)


def stopped_short(stop_reason: str, text: str) -> Fail | None:
    """Why an answer or a summary that ended so is no result, whatever it says."""
    if stop_reason == "refusal":
        return Fail("ModelRefused", f"the model refused to answer: {text[:400] or 'it gave no explanation'}")
    if stop_reason == "max_tokens":
        # Half an answer is no result, and half an argument list must not be executed.
        return Fail("OutputTruncated", "the answer reached the model's maxOutputTokens and is incomplete")
    return None


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


def retry_delay_seconds(attempt: int, attempts: int, retry_after_seconds: float | None) -> float | None:
    """The pause after failed attempt number `attempt` of `attempts` (the first is 1); None when it was the last."""
    if attempt >= attempts:
        return None
    pause = min(2.0 ** (attempt - 1), LONGEST_PAUSE_SECONDS)
    return max(pause, min(retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS))


@dataclass(frozen=True, slots=True)
class Wait:
    """Stay for so many seconds more, or until there is a prompt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """No harness is needed until there is a prompt."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run has waited as long as it may: it ends with its last answer."""


def while_idle(policy: IdlePolicy, waited_seconds: float) -> Wait | Sleep | Finish:
    """What an interactive run does that has waited so long for a prompt."""
    suspend = SUSPEND_AFTER_SECONDS if policy.suspend_after_seconds is None else float(policy.suspend_after_seconds)
    if policy.finish_after_seconds is None:
        return Sleep() if waited_seconds >= suspend else Wait(suspend - waited_seconds)
    left = policy.finish_after_seconds - waited_seconds
    if left <= 0:
        return Finish()
    if left <= CLOCK_SKEW_SECONDS:
        return Wait(left)
    return Sleep() if waited_seconds >= suspend else Wait(min(suspend - waited_seconds, left))
