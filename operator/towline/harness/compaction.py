"""When a history has grown too large for the model, and what is kept of it.

Asked by `steps.py` before each model request; the loop carries it out. Pure. What is cut off is summarised by the
model; what is kept begins anew as one event, `context.compacted`, from which a fold may start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from towline.events.event import to_json
from towline.events.totals import NOTHING, Totals
from towline.harness.fold import History
from towline.harness.sizes import CHARACTERS_PER_TOKEN, Window, tokens_of
from towline.harness.transcript import Message, UserMessage, characters, message_data

KEPT = 0.2
"""Share of the model's context: the most that stays as it was. The rest is for the summary and for what comes."""

MAX_MESSAGES, KEPT_MESSAGES = 2000, 200
"""Many small messages slow every request and every resume, though they may fit."""

KEPT_CHARACTERS = 400_000
"""For models with a very large context: what is kept stands in one event, of 8 MiB at most."""

FEWEST_DROPPED = 3
"""A history of one huge prompt, or one that a huge system prompt leaves no room, gets no smaller by a summary; what
`fitting.py` takes out of one huge batch of results, it does without."""

SUMMARISE = """\
The conversation has become too long to go on with in full. Write a summary that replaces everything above: the task, \
all instructions that still hold, what was done and found out so far, the exact names of files, commands, values and \
decisions that matter, what is unfinished, and what comes next. Write only the summary, and use no tools."""

CONTINUED_BYTES = 6 << 20
"""Of a history that another run takes over: one event holds 8 MiB. The oldest messages of a longer one stay behind."""

NOT_CARRIED_OVER = "This call was not carried over: the run continues from the history of another."


@dataclass(frozen=True, slots=True)
class Cut:
    """`history.messages[:at]` is summarised; the message at `prompt`, the running turn's, is kept nevertheless."""

    at: int
    prompt: int | None
    reason: str
    """`budget` or `messages`."""


def cut_for(history: History, window: Window) -> Cut | None:
    """Where to cut before the next request; None while there is no need, or when a cut would win little.

    A message holds the results of its own tool uses, so between messages is always a place to cut once none is open.
    """
    too_large = tokens_of(history, window.head_characters) > window.full
    if not too_large and len(history.messages) <= MAX_MESSAGES:
        return None
    # The share of the length, too: where a token is one character, a fifth of the context is more than it seems.
    most = min(KEPT * window.context_tokens * CHARACTERS_PER_TOKEN, KEPT * history.characters, KEPT_CHARACTERS)
    at, kept = len(history.messages), 0
    while at > 0 and len(history.messages) - at < KEPT_MESSAGES:
        kept += characters(history.messages[at - 1])
        if kept > most:
            break
        at -= 1
    prompt = history.turn_at if history.turn_open and history.turn_at < at else None
    dropped = sum(characters(message) for message in history.messages[:at])
    if prompt is not None:
        dropped -= characters(history.messages[prompt])
    if not too_large:
        return Cut(at, prompt, "messages")
    return Cut(at, prompt, "budget") if dropped * 2 > history.characters and at >= FEWEST_DROPPED else None


def to_summarise(history: History, cut: Cut) -> tuple[Message, ...]:
    """What the model is sent for the summary."""
    return (*history.messages[: cut.at], UserMessage(SUMMARISE))


def compacted(history: History, cut: Cut, summary: str, totals: Totals) -> dict[str, Any]:
    """Data of `context.compacted` for a summary of the part before the cut; `totals` are those with its request."""
    kept = list(history.messages[cut.at :])
    if cut.prompt is not None:
        kept = [history.messages[cut.prompt], *kept]
    turn_at = 0 if cut.prompt is not None else max(history.turn_at - cut.at, 0)
    return _data(history, cut.reason, summary, kept, turn_at, totals, tokens_of(history))


def continued(source: History, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Data of the `context.compacted` with which a run begins that continues from another's history.

    It takes over what was said, and nothing of the other's prompts, counts and open calls.
    """
    content = [{"type": "text", "text": NOT_CARRIED_OVER}]
    for call_id in list(source.open_calls):
        result = {"call_id": call_id, "content": content, "is_error": True, "outcome": "cancelled"}
        source.apply("agent.tool_result", result)
    kept = list(source.messages)
    while len(to_json([message_data(message) for message in kept])) > CONTINUED_BYTES:
        kept = kept[len(kept) // 4 + 1 :]
    while kept and not isinstance(kept[0], UserMessage):
        kept.pop(0)
    return _data(History(), "continued", "", kept, 0, NOTHING, tokens_of(source)) | {"source": dict(origin)}


def _data(
    history: History,
    reason: str,
    summary: str,
    kept: Sequence[Message],
    turn_at: int,
    totals: Totals,
    before_tokens: int,
) -> dict[str, Any]:
    return {
        "reason": reason,
        "summary": summary,
        "kept": [message_data(message) for message in kept],
        "turn": history.turn,
        "turn_open": history.turn_open,
        "turn_at": turn_at,
        "turn_prompts": list(history.turn_prompts),
        "consumed": history.consumed.as_list(),
        "answers": history.answers,
        "totals": asdict(totals),
        "before_tokens": before_tokens,
    }
