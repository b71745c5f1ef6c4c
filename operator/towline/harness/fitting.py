"""What is sent of a conversation that is too large and gets no smaller by a cut: tool results lose their middle.

Called by `asking.py` for every request, that of a summary too. The log keeps everything. Pure, and decided by the
history alone: a harness that resumes sends what the dead one would have sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from towline.harness.fold import History
from towline.harness.sizes import Window, tokens_of
from towline.harness.transcript import AssistantMessage, Message, characters

FILLED = 0.75
"""Share of the room that a shortened request takes: the count is a guess, and logs or hexadecimal have more tokens."""

MARKER_CHARACTERS = 80
"""Kept free for the line that says what is missing."""


def sendable(history: History, messages: Sequence[Message], window: Window) -> tuple[Message, ...]:
    """`messages`, which are of `history`, as they may be sent: unchanged while they fit beside the answer."""
    head = window.head_characters
    tokens, whole = tokens_of(history, head), head + history.characters
    if (head + sum(map(characters, messages))) * tokens <= window.room * whole:  # taken to be as dense as the history
        return tuple(messages)
    return fitted(messages, int(FILLED * window.room * whole / tokens) - head)


def fitted(messages: Sequence[Message], budget: int) -> tuple[Message, ...]:
    """`messages` in `budget` characters, as far as tool results can give way: the largest do, all to one length."""
    answers = (message for message in messages if isinstance(message, AssistantMessage))
    lengths = [len(result.text) for answer in answers for result in answer.results.values()]
    rest = sum(map(characters, messages)) - sum(lengths)
    most = _evenly(lengths, max(budget - rest, 0))
    return tuple(_shortened(message, most) for message in messages)


def left_out(messages: Sequence[Message], sent: Sequence[Message]) -> int:
    """How many characters of `messages` are not in `sent`."""
    return sum(characters(one) - characters(other) for one, other in zip(messages, sent, strict=True) if one != other)


def _evenly(lengths: Sequence[int], budget: int) -> int:
    """The length that nothing may exceed, so that all together stay within `budget`."""
    for place, length in enumerate(sorted(lengths)):
        share = budget // (len(lengths) - place)
        if length > share:
            return share
        budget -= length
    return max(lengths, default=0)


def _shortened(message: Message, most: int) -> Message:
    if not isinstance(message, AssistantMessage) or all(len(each.text) <= most for each in message.results.values()):
        return message
    results = {id_: replace(each, text=_without_middle(each.text, most)) for id_, each in message.results.items()}
    return replace(message, results=results)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    keep = max(most - MARKER_CHARACTERS, 0)
    marker = f"\n[… {len(text) - keep} characters left out: the conversation is too long …]\n"
    head = keep // 2
    return (text[:head] + marker + text[len(text) - (keep - head) :])[:most]
