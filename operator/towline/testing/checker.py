"""Judges what was recorded of one run against the durability promise (docs/durability.md): a list of violations.

The sweeps in tests/durability call it with what they saw from outside; so may anyone who has a log, a follower's notes
and the effects of its tools. Pure: it reads no store and no clock.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from towline.api.snapshot import Model
from towline.events.event import Event
from towline.harness.fold import History
from towline.harness.models import anthropic, openai_chat
from towline.harness.models.base import Request
from towline.testing.provider_rules import anthropic_problems, openai_problems

Kind = Literal["lost", "duplicated", "out of order", "executed twice", "terminal", "result", "history", "prompt"]

OWN_PROMPT = "0-0"
_MODEL = Model(api="Scripted", provider="checker", name="checker")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    kind: Kind
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Posted:
    """A prompt as its sender knows it. `prompt_id` is None when it was refused."""

    key: str
    content: str
    prompt_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Everything that clients of one run saw, and what happened outside of it."""

    log: Sequence[Event]
    """The whole log, read after the end of the run."""
    replay: Sequence[Event]
    """The same, read once more by another reader."""
    seen: Sequence[Sequence[Event]] = ()
    """What a follower was given, in its order: one sequence, and one more for each loss of the store it was told of."""
    acknowledged: Collection[str] = ()
    """Ids of events whose writer was told that they are in the log."""
    posted: Sequence[Posted] = ()
    effects: Sequence[str] = ()
    """What the commands left behind outside the run, one word an execution."""
    orders: Collection[str] = ()
    """All words that a command of this run may leave behind, each asked for by one tool use alone."""


def check(recorded: Recorded) -> list[Violation]:
    """Every promise that does not hold."""
    return [
        *_order(recorded.log),
        *_replay(recorded),
        *_kept(recorded),
        *_terminal(recorded.log),
        *_results(recorded.log),
        *_effects(recorded),
        *_history(recorded.log),
        *_prompts(recorded),
    ]


def _order(log: Sequence[Event]) -> Iterator[Violation]:
    for position, event in enumerate(log):
        if position and event.seq != log[position - 1].seq + 1:
            yield Violation("out of order", f"seq {event.seq} follows {log[position - 1].seq}")
        if position and event.epoch < log[position - 1].epoch:
            earlier = log[position - 1].epoch
            yield Violation("out of order", f"seq {event.seq} {event.type}: epoch {event.epoch} after {earlier}")
    if log and log[0].seq != 1:
        yield Violation("lost", f"the log begins with seq {log[0].seq}")
    for event_id, times in Counter(event.id for event in log).items():
        if times > 1:
            yield Violation("duplicated", f"{event_id} is in the log {times} times")


def _replay(recorded: Recorded) -> Iterator[Violation]:
    if [event.line() for event in recorded.log] != [event.line() for event in recorded.replay]:
        yield Violation("out of order", "two readings of the log differ")


def _kept(recorded: Recorded) -> Iterator[Violation]:
    """What a client was told is in the log is there, as it was told."""
    kept = {event.id: event for event in recorded.log}
    for event_id in recorded.acknowledged:
        if event_id not in kept:
            yield Violation("lost", f"{event_id} was acknowledged to its writer")
    for stretch in recorded.seen:
        for before, event in itertools.pairwise(stretch):
            if event.seq != before.seq + 1:
                yield Violation("out of order", f"a follower was given seq {event.seq} after {before.seq}")
        for event in stretch:
            found = kept.get(event.id)
            if found is None:
                yield Violation("lost", f"{event.id} {event.type} was shown to a follower as seq {event.seq}")
            elif (found.type, found.src, found.turn, found.data) != (event.type, event.src, event.turn, event.data):
                yield Violation("lost", f"{event.id} {event.type} is not what a follower was shown")
    for event in recorded.seen[-1] if recorded.seen else ():
        found = kept.get(event.id)
        if found is not None and found.line() != event.line():
            yield Violation("out of order", f"{event.id} {event.type}: another line than the follower's")


def _terminal(log: Sequence[Event]) -> Iterator[Violation]:
    ends = [event for event in log if event.terminal]
    if len(ends) != 1:
        yield Violation("terminal", f"{len(ends)} terminal events: {[event.seq for event in ends]}")
    elif log[-1] is not ends[0]:
        yield Violation("terminal", f"seq {ends[0].seq} {ends[0].type} is followed by {log[-1].type}")


def _results(log: Sequence[Event]) -> Iterator[Violation]:
    """Each tool use has one claim and one result; those of the last answer of a run that broke off may have none."""
    claims = Counter(event.payload["call_id"] for event in log if event.type == "agent.tool_use")
    results = Counter(event.payload["call_id"] for event in log if event.type == "agent.tool_result")
    asked: dict[str, int] = {}
    answers = 0
    for event in log:
        if event.type == "agent.message":
            answers += 1
            asked |= {block["call_id"]: answers for block in event.payload["content"] if block["type"] == "tool_use"}
    broken_off = bool(log) and log[-1].type in ("run.failed", "run.cancelled")
    for call_id in {**asked, **claims, **results}:
        if call_id not in asked:
            yield Violation("result", f"call {call_id} was asked for by no answer")
        if claims[call_id] > 1:
            yield Violation("duplicated", f"call {call_id} was claimed {claims[call_id]} times")
        may_be_open = broken_off and not claims[call_id] and asked.get(call_id) == answers
        if results[call_id] != 1 and not (may_be_open and results[call_id] == 0):
            yield Violation("result", f"call {call_id} has {results[call_id]} results")


def _effects(recorded: Recorded) -> Iterator[Violation]:
    """No tool use was executed twice; what is said to have been done was done."""
    done = Counter(recorded.effects)
    outcomes = {
        event.payload["call_id"]: event.payload["outcome"]
        for event in recorded.log
        if event.type == "agent.tool_result"
    }
    said: dict[str, str] = {}
    for event in recorded.log:
        if event.type == "agent.tool_use":
            call = event.payload
            words = set(str(call["input"].get("command", "")).split())
            said |= {word: outcomes.get(call["call_id"], "") for word in words & set(recorded.orders)}
    for word in {**done, **said}:
        if done[word] > 1:
            yield Violation("executed twice", f"{word} was executed {done[word]} times")
        if word not in said:
            yield Violation("lost", f"{word} was executed and no call says so")
        elif said[word] == "ok" and not done[word]:
            yield Violation("lost", f"{word} is said to have been executed and was not")


def _history(log: Sequence[Event]) -> Iterator[Violation]:
    """What each model request would carry is what the providers accept."""
    history = History()
    for event in log:
        if event.type == "span.model_request_start":
            for problem in _problems(history):
                yield Violation("history", f"at seq {event.seq}: {problem}")
        history.apply(event.type, event.payload, event.turn)


def _problems(history: History) -> list[str]:
    if history.open_calls:
        return [f"a model request while {list(history.open_calls)} have no result"]
    request = Request("msg_0", "", tuple(history.messages), ())
    bodies: tuple[Mapping[str, Any], ...] = (anthropic.body(_MODEL, request), openai_chat.body(_MODEL, request))
    return [*anthropic_problems(bodies[0]), *openai_problems(bodies[1])]


def _prompts(recorded: Recorded) -> Iterator[Violation]:
    """An accepted prompt is consumed once, with its content; only a run that failed or was cancelled leaves some."""
    taken: dict[str, list[str]] = {}
    queued: list[int] = []
    for event in recorded.log:
        if event.type == "user.message":
            message = event.payload
            taken.setdefault(message["prompt_id"], []).append(message["content"])
            if message["delivery"] == "queue":
                queued.append(int(message["prompt_id"].partition("-")[0]))
    if queued != sorted(queued):
        yield Violation("prompt", f"queued prompts were taken in the order {queued}")
    ids: dict[str, str] = {}
    for posted in recorded.posted:
        if posted.prompt_id is None:
            continue
        if ids.setdefault(posted.key, posted.prompt_id) != posted.prompt_id:
            yield Violation("prompt", f"key {posted.key} was accepted as {ids[posted.key]} and {posted.prompt_id}")
        found = taken.get(posted.prompt_id, [])
        if found and found[0] != posted.content:
            yield Violation("prompt", f"{posted.prompt_id} was accepted as {posted.content!r}, taken as {found[0]!r}")
        if not found and recorded.log and recorded.log[-1].type == "run.completed":
            yield Violation("prompt", f"{posted.prompt_id} was accepted and not answered")
    if len(set(ids.values())) < len(ids):
        yield Violation("prompt", "two keys were accepted as one prompt")
    for prompt_id, contents in taken.items():
        if len(contents) > 1:
            yield Violation("prompt", f"{prompt_id} was taken {len(contents)} times")
        if prompt_id not in (OWN_PROMPT, *ids.values()):
            yield Violation("prompt", f"{prompt_id} was taken and posted by nobody")
