"""Deltas of the message or command in progress: for eyes, capped, and never the truth.

Called by the harness (text, thinking, tool input) and the gateway (tool output). The final event carries the whole, and
wins.
"""

from collections.abc import Mapping
from typing import Any

from towline.events.event import RunRef
from towline.events.store import Store

_KEPT_DELTAS = 2000


async def push_delta(store: Store, run: RunRef, *, epoch: int, delta: Mapping[str, Any]) -> None:
    """Adds `{kind, message_id | call_id, offset, text}`; `offset` counts the characters sent before it.

    One try only: a delta is not worth waiting for. Raises Fenced, LogClosed, StoreUnavailable.
    """
    keys = run.keys
    fields = [part for name, value in delta.items() for part in (name, value)]
    await store.script(
        "delta",
        [keys.meta, keys.log, keys.live],
        [keys.notify, epoch, _KEPT_DELTAS, *fields],
        patience_seconds=0,
    )


async def read_deltas(
    store: Store, run: RunRef, after_id: str = "0-0", count: int = 500
) -> list[tuple[str, dict[str, Any]]]:
    """The deltas after the one with `after_id`, each with its own id; older ones may be gone."""
    key = run.keys.live
    entries = await store.call(lambda: store.client.execute_command("XRANGE", key, f"({after_id}", "+", "COUNT", count))
    return [(entry_id.decode(), _delta(fields)) for entry_id, fields in entries]


def _delta(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    delta: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
    delta["offset"] = int(delta["offset"])
    return delta
