"""The durable inbox of a run: prompts posted once, read in order by the harness after its own cursor.

Called by the CLI and the API (post) and by the harness (read). Nothing is deleted on reading: the log (`turn.started`)
tells which prompts were taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from towline.errors import Invalid
from towline.events.event import RunRef
from towline.events.store import Store

Delivery = Literal["queue", "steer", "interrupt"]
"""queue: a turn of its own, when those before are done. steer: into the running turn, before its next model request;
without a running turn like queue. interrupt: the running turn ends at once, and this one's turn is the next."""

MAX_CONTENT_BYTES = 256 * 1024
"""Four bytes for each of the 65,536 characters a prompt may have at most."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`id` is `<n>-0`, n from 1 without gaps."""

    id: str
    content: str
    delivery: str
    sender: str

    @property
    def number(self) -> int:
        return int(self.id.partition("-")[0])


async def post(
    store: Store, run: RunRef, content: str, *, key: str, delivery: str = "queue", sender: str = ""
) -> Prompt:
    """Posts a prompt, once per idempotency key: a repeat returns the first.

    Raises LogClosed on a finished run, Invalid for a key that was used with another content or delivery, for content
    that is too long, and for a delivery that does not exist.
    """
    if delivery not in get_args(Delivery):
        raise Invalid(f'delivery: "{delivery}"; expected {", ".join(get_args(Delivery))}')
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
    return _prompt(prompt_id, entries[0][1])


async def read_after(store: Store, run: RunRef, cursor: str, count: int = 100) -> list[Prompt]:
    """The prompts after the one with id `cursor`, oldest first; "0-0" (or an empty cursor) is before the first."""
    key = run.keys.inbox
    entries = await store.call(
        lambda: store.client.execute_command("XRANGE", key, f"({cursor or '0-0'}", "+", "COUNT", count)
    )
    return [_prompt(entry_id.decode(), fields) for entry_id, fields in entries]


def _prompt(prompt_id: str, fields: Mapping[bytes, bytes]) -> Prompt:
    return Prompt(prompt_id, fields[b"content"].decode(), fields[b"delivery"].decode(), fields[b"sender"].decode())
