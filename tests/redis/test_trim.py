"""Letting go of the beginning of a long log."""

import pytest

from towline.errors import Gap
from towline.events import runs
from towline.events.event import draft
from towline.events.groups import Group
from towline.events.log import EventLog


async def test_what_lies_below_is_gone_with_its_large_data_and_readers_are_told(store, run, harness, now):
    appender = harness()
    large = draft("agent.message", {"text": "x" * 100_000}, now=now)
    await appender.append([large, draft("turn.completed", {}, now=now)])
    kept = draft("context.compacted", {"text": "y" * 100_000}, now=now)
    await appender.append([kept, draft("turn.started", {}, now=now)])

    assert await runs.trim(store, run, 3, above=2) == 2
    assert await runs.trim(store, run, 3, above=0) == 0

    with pytest.raises(Gap) as gap:
        await EventLog(store, run).read(1)
    assert gap.value.first_available == 3
    assert [event.payload.get("text", "")[:1] for event in await EventLog(store, run).read(3)] == ["y", ""]
    assert await store.client.execute_command("EXISTS", run.keys.blob(large.id), run.keys.blob(kept.id)) == 1


async def test_a_log_that_is_short_enough_keeps_everything(store, run, harness, said):
    await harness().append([said() for _ in range(5)])

    assert await runs.trim(store, run, 4, above=5) == 0
    assert len(await EventLog(store, run).all()) == 5


async def test_no_group_holds_it_up(store, run, harness, said):
    await harness().append([said() for _ in range(5)])
    group = Group(store, run, "slow", "worker")
    messages = group.messages(block_ms=10, count=1)
    await anext(messages)
    await messages.aclose()

    assert await runs.trim(store, run, 4, above=0) == 3
