"""Large data: written beside the log before the entry that refers to it, so that no reference dangles.

Until then it is kept for a while only: an event may be refused. The script that adds the entry keeps it for good.
"""

import hashlib

from towline.errors import Invalid
from towline.events.event import MAX_DATA_BYTES, Draft, RunRef
from towline.events.store import Store

MAX_ENTRY_BYTES = 64 * 1024
"""Data beyond this would make reading a stream slow for everyone who does not need it."""

_UNREFERRED_SECONDS = 3600
"""Far longer than any append is repeated."""


async def entry_data(store: Store, run: RunRef, draft: Draft, patience_seconds: float | None = None) -> bytes:
    """What the entry of `draft` holds: its data, or the reference to the blob that is written here."""
    data = draft.data
    if len(data) <= MAX_ENTRY_BYTES:
        return data
    if len(data) > MAX_DATA_BYTES:
        raise Invalid(f"event {draft.type}: {len(data)} bytes of data; expected at most {MAX_DATA_BYTES}")
    key = run.keys.blob(draft.id)
    # Of an event that is written again the data may be there, and kept for good already.
    command = ("SET", key, data, "NX", "EX", _UNREFERRED_SECONDS)
    await store.call(lambda: store.client.execute_command(*command), patience_seconds=patience_seconds)
    return b'{"blob":"%b","bytes":%d,"sha256":"%b"}' % (
        draft.id.encode(),
        len(data),
        hashlib.sha256(data).hexdigest().encode(),
    )


async def script_args(
    store: Store, run: RunRef, draft: Draft, patience_seconds: float | None = None
) -> tuple[str | bytes, ...]:
    """The five arguments by which a script takes an event."""
    turn = "" if draft.turn is None else str(draft.turn)
    return draft.id, draft.type, draft.time, turn, await entry_data(store, run, draft, patience_seconds)
