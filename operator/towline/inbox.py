"""The durable inbox of a run: prompts posted once, read in order by the harness after its own cursor.

Called by the CLI and the API (post, wait) and by the harness (read). Nothing is deleted on reading: the log
(`user.message`) tells which prompts were taken.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from towline.errors import Gap, Invalid, LogClosed, Rewound
from towline.events.event import Event, RunRef
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store

Delivery = Literal["queue", "steer", "interrupt"]
"""queue: a turn of its own, when those before are done. steer: into the running turn, before its next model request;
without a running turn like queue. interrupt: the running turn ends at once, and this one's turn is the next."""

MAX_CONTENT_BYTES = 256 * 1024
"""Four bytes for each of the 65,536 characters a prompt may have at most."""

_PROMPT_ID = re.compile(r"[1-9][0-9]{0,15}-0")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`id` is `<n>-0`, n from 1 without gaps."""

    id: str
    content: str
    delivery: str
    sender: str
    key: str
    """The idempotency key it was posted under; empty for the run's own."""

    @property
    def number(self) -> int:
        return _number_of(self.id)


async def post(
    store: Store, run: RunRef, content: str, *, key: str, delivery: str = "queue", sender: str = ""
) -> Prompt:
    """Posts a prompt, once per idempotency key: a repeat returns the first.

    Raises LogClosed on a finished run, Invalid for a run that does not exist, for a key that was used with another
    content or delivery, for content that is blank or too long, and for a delivery that does not exist.
    """
    if delivery not in get_args(Delivery):
        raise Invalid(f'delivery: "{delivery}"; expected {", ".join(get_args(Delivery))}')
    if not content.strip():
        raise Invalid("prompt: it is blank; expected some words")
    size = len(content.encode("utf-8", "replace"))
    if size > MAX_CONTENT_BYTES:
        raise Invalid(f"prompt: {size} bytes; expected at most {MAX_CONTENT_BYTES}")
    keys = run.keys
    arguments: list[str | bytes] = [keys.notify, key, content.encode("utf-8", "replace"), delivery, sender]
    reply, same = await store.script("inbox", [keys.meta, keys.log, keys.inbox], arguments)
    prompt_id = reply.decode()
    if not same:
        raise Invalid(
            f'key: "{key}" was used before for another prompt ({prompt_id}); expected a new key for a new prompt'
        )
    entries = await store.call(lambda: store.client.execute_command("XRANGE", keys.inbox, prompt_id, prompt_id))
    if not entries:  # the store has lost it, after a turn had taken it
        return Prompt(prompt_id, content, delivery, sender, key)
    return _prompt(prompt_id, entries[0][1])


async def read_after(store: Store, run: RunRef, cursor: str, count: int = 100) -> list[Prompt]:
    """The prompts after the one with id `cursor`, oldest first; "0-0" (or an empty cursor) is before the first."""
    key = run.keys.inbox
    entries = await store.call(
        lambda: store.client.execute_command("XRANGE", key, f"({cursor or '0-0'}", "+", "COUNT", count)
    )
    return [_prompt(entry_id.decode(), fields) for entry_id, fields in entries]


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a prompt."""

    text: str
    """What the model said last in the turn that took the prompt; empty when none did."""
    stop_reason: str
    """That of `turn.completed`: `end_turn`, `interrupted` …; empty when the run ended before the turn did."""
    ended: Event | None = None
    """The run's terminal event, if that came first."""


async def wait_for_reply(store: Store, run: RunRef, prompt_id: str, *, notices: Notices | None = None) -> Reply:
    """Waits until the turn that takes the prompt is complete, or the run has ended. It may be asked at any time, also
    afterwards and again. Raises Gap when the turn's events are no longer kept, and Invalid for a prompt that was never
    in the inbox.
    """
    posted = (await EventLog(store, run).state()).inbox_head
    if _PROMPT_ID.fullmatch(prompt_id) is None or _number_of(prompt_id) > posted:
        raise Invalid(f"prompt {prompt_id}: not in the inbox of run {run.uid}")
    from_seq = 1
    while True:
        try:
            return await _reply(store, run, prompt_id, from_seq, notices)
        except Rewound:
            pass  # the log was written anew behind our back: read it again
        except Gap as gap:
            if gap.first_available <= from_seq:
                raise
            from_seq = gap.first_available


async def _reply(store: Store, run: RunRef, prompt_id: str, from_seq: int, notices: Notices | None) -> Reply:
    turn, text = None, ""
    async for event in follow(store, run, from_seq, notices=notices):
        if event.type in ("turn.started", "user.message") and prompt_id in _prompts_of(event):
            turn, text = event.turn, ""
        elif turn is None and event.type == "context.compacted" and _taken_before(event, prompt_id):
            # We did not see it: its turn began before what is kept. Only of the running one is the end still to come.
            if not event.payload["turn_open"] or prompt_id not in event.payload.get("turn_prompts", ()):
                raise Gap(1, event.seq)
            turn = event.payload["turn"]
        elif event.terminal:
            return Reply(text, "", event)
        elif turn is None or event.turn != turn:
            continue
        elif event.type == "agent.message":
            text = "".join(block["text"] for block in event.payload["content"] if block["type"] == "text")
        elif event.type == "agent.message_aborted" and event.payload["reason"] == "Interrupted":
            text = event.payload["partial"]
        elif event.type == "turn.completed":
            return Reply(text, event.payload["stop_reason"])
    raise LogClosed("an event that is not in the log")


def _prompts_of(event: Event) -> list[str]:
    return event.payload["prompt_ids"] if event.type == "turn.started" else [event.payload["prompt_id"]]


def _taken_before(compacted: Event, prompt_id: str) -> bool:
    """Whether the prompt is among `consumed`: all up to the first number, and the others singly."""
    upto, *singles = compacted.payload["consumed"]
    return _number_of(prompt_id) <= upto or _number_of(prompt_id) in singles


def _number_of(prompt_id: str) -> int:
    return int(prompt_id.partition("-")[0])


def _prompt(prompt_id: str, fields: Mapping[bytes, bytes]) -> Prompt:
    content, delivery, sender, key = (fields[name].decode() for name in (b"content", b"delivery", b"sender", b"key"))
    return Prompt(prompt_id, content, delivery, sender, key)
