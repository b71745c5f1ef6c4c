"""Deltas: fenced, capped, readable from a position."""

import pytest

from towline.errors import Fenced, LogClosed
from towline.events import live, runs
from towline.events.event import draft


def delta(text: str, offset: int = 0) -> dict[str, object]:
    return {"kind": "text", "message_id": "m1", "offset": offset, "text": text}


async def test_deltas_are_read_after_a_position(store, run):
    await live.push_delta(store, run, epoch=1, delta=delta("Hel"))
    await live.push_delta(store, run, epoch=1, delta=delta("lo", 3))

    [(first_id, first), (_, second)] = await live.read_deltas(store, run)

    assert (first, second) == (delta("Hel"), delta("lo", 3))
    assert [each for _, each in await live.read_deltas(store, run, first_id)] == [second]


async def test_a_stale_harness_pushes_no_delta(store, run, harness, said):
    await harness(epoch=2).append([said()])

    with pytest.raises(Fenced):
        await live.push_delta(store, run, epoch=1, delta=delta("ghost"))
    assert await live.read_deltas(store, run) == []


async def test_a_finished_run_takes_no_deltas(store, run, now):
    await runs.finish(store, run, 1, draft("run.completed", {}, now=now))

    with pytest.raises(LogClosed):
        await live.push_delta(store, run, epoch=1, delta=delta("ghost"))


async def test_old_deltas_are_dropped_and_the_log_is_not_touched(store, run):
    for number in range(2300):
        await live.push_delta(store, run, epoch=1, delta=delta("x", number))

    length = await store.client.execute_command("XLEN", run.keys.live)
    assert 2000 <= length < 2200
    assert await store.client.execute_command("EXISTS", run.keys.log) == 0
