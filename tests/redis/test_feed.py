"""What a namespace's feed is still to get stands in `meta`, and is taken off once it is there."""

import pytest

from tests.redis.conftest import NOW
from towline.errors import Fenced
from towline.events import runs
from towline.events.event import draft
from towline.events.feed import feed, feed_rest
from towline.events.log import EventLog
from towline.naming import feed_key


async def fed(store, run) -> list[tuple[int, str]]:
    entries = await store.client.execute_command("XRANGE", feed_key(run.namespace), "-", "+")
    ours = [fields for _, fields in entries if fields[b"run"] == run.uid.encode()]
    return [(int(fields[b"seq"]), fields[b"type"].decode()) for fields in ours]


async def test_lifecycle_events_are_to_be_fed_and_no_others(store, run, harness, said):
    await runs.create(store, run, b"{}", now=NOW)
    await harness().append([said("a"), said("b")])
    await runs.finish(store, run, 2, draft("run.cancelled", {"reason": "x"}, now=NOW))

    assert (await EventLog(store, run).state()).unfed == (1, 4)
    await feed_rest(store, run)

    assert await fed(store, run) == [(1, "run.started"), (4, "run.cancelled")]
    assert (await EventLog(store, run).state()).unfed == ()


async def test_one_that_died_before_its_note_feeds_again_and_what_came_meanwhile_stays(store, run):
    await runs.create(store, run, b"{}", now=NOW)
    seen = (await EventLog(store, run).state()).unfed
    await runs.tell_phase(store, run, 1, "Running", "Running", now=NOW)

    await feed(store, run, seen)

    assert (await EventLog(store, run).state()).unfed == (2,)
    await feed(store, run, (1, 2))
    assert await fed(store, run) == [(1, "run.started"), (1, "run.started"), (2, "run.status")]


async def test_a_phase_is_told_once_until_it_changes_and_never_after_the_end(store, run):
    await runs.create(store, run, b"{}", now=NOW)

    assert not await runs.tell_phase(store, run, 1, "Pending", "Starting", now=NOW)
    assert await runs.tell_phase(store, run, 1, "Running", "Running", now=NOW)
    assert not await runs.tell_phase(store, run, 1, "Running", "Restarting", now=NOW)
    assert await runs.tell_phase(store, run, 2, "Suspended", "UserRequested", now=NOW)
    with pytest.raises(Fenced):
        await runs.tell_phase(store, run, 1, "Running", "Running", now=NOW)
    await runs.finish(store, run, 3, draft("run.cancelled", {"reason": "x"}, now=NOW))
    assert not await runs.tell_phase(store, run, 3, "Running", "Running", now=NOW)

    told = [event.payload for event in await EventLog(store, run).all() if event.type == "run.status"]
    assert told == [
        {"phase": "Running", "reason": "Running"},
        {"phase": "Suspended", "reason": "UserRequested"},
    ]
