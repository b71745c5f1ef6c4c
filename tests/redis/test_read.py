"""Reading a log: replay, large data, and what is no longer kept."""

import pytest

from towline.errors import Gap
from towline.events import runs
from towline.events.event import MAX_DATA_BYTES, RunRef
from towline.events.follow import follow
from towline.events.log import EventLog


async def test_two_replays_give_the_same_bytes(store, run, harness, said, now):
    await runs.create(store, run, b"{}", now=now)
    await harness().append([said(text) for text in ("a", 'quote " and \\', "ünïcode \u2028", "\ud83d", "")])

    first = [event.line() for event in await EventLog(store, run).all()]
    second = [event.line() for event in await EventLog(store, RunRef(run.namespace, run.uid)).all()]

    assert first == second
    assert len(first) == 6
    assert b'"name":"hello"' in first[0]


async def test_a_read_starts_anywhere_and_ends_at_the_count(store, run, harness, said):
    await harness().append([said(number) for number in range(10)])
    log = EventLog(store, run)

    assert [event.seq for event in await log.read(4, 3)] == [4, 5, 6]
    assert [event.seq for event in await log.read(9)] == [9, 10]
    assert await log.read(11) == []
    assert [event.seq for event in await log.since(8)] == [8, 9, 10]


async def test_a_log_longer_than_a_page_is_read_whole(store, run, harness, said):
    appender = harness()
    for _ in range(5):
        await appender.append([said() for _ in range(500)])

    assert [event.seq for event in await EventLog(store, run).all()] == list(range(1, 2501))


async def test_large_data_stands_beside_the_log_and_is_read_in_place(store, run, harness, said):
    small, large = said("x" * 60_000), said("y" * (MAX_DATA_BYTES - 100))

    await harness().append([small, large, said("after")])

    assert [event.data for event in await EventLog(store, run).all()][:2] == [small.data, large.data]
    [(_, fields)] = await store.client.execute_command("XRANGE", run.keys.log, "2-0", "2-0")
    assert len(fields[b"data"]) < 200
    assert fields[b"data"].startswith(b'{"blob":"' + large.id.encode())


async def test_a_run_of_large_events_is_read_in_short_pages(store, run, harness, said):
    appender = harness()
    for number in range(7):
        await appender.append([said(str(number) * 7_000_000)])
    log = EventLog(store, run)

    page, more = await log.page(1, 100)

    assert (len(page), more) == (5, True)
    assert [event.seq for event in await log.all()] == list(range(1, 8))


async def test_large_data_that_is_gone_is_a_gap_and_not_an_empty_event(store, run, harness, said):
    large = said("y" * 100_000)
    await harness().append([said(), large])
    await store.client.execute_command("DEL", run.keys.blob(large.id))

    with pytest.raises(Gap) as gap:
        await EventLog(store, run).all()

    assert (gap.value.from_seq, gap.value.first_available) == (2, 3)


async def test_large_data_that_is_gone_hides_nothing_of_what_comes_before_it(store, run, harness, said):
    large = said("y" * 100_000)
    await harness().append([said("before"), large, said("after")])
    await store.client.execute_command("DEL", run.keys.blob(large.id))
    log, following = EventLog(store, run), follow(store, run)

    assert await log.page(1, 10) == (await log.read(1, 1), True)
    with pytest.raises(Gap) as gap:
        await log.read(2)
    assert (gap.value.from_seq, gap.value.first_available) == (2, 3)
    assert (await anext(following)).seq == 1
    with pytest.raises(Gap):
        await anext(following)


async def test_reading_below_the_first_kept_entry_is_a_gap(store, run, harness, said):
    await harness().append([said() for _ in range(10)])
    await store.client.execute_command("XTRIM", run.keys.log, "MINID", "6-0")
    log = EventLog(store, run)

    with pytest.raises(Gap) as gap:
        await log.read(3)

    assert (gap.value.from_seq, gap.value.first_available) == (3, 6)
    assert [event.seq for event in await log.read(6)] == [6, 7, 8, 9, 10]


async def test_a_log_trimmed_to_nothing_is_a_gap(store, run, harness, said):
    await harness().append([said() for _ in range(3)])
    await store.client.execute_command("XTRIM", run.keys.log, "MAXLEN", "0")

    with pytest.raises(Gap) as gap:
        await EventLog(store, run).read(2)

    assert gap.value.first_available == 4
    assert await EventLog(store, run).read(4) == []


async def test_a_hole_in_the_middle_is_a_gap(store, run, harness, said):
    await harness().append([said() for _ in range(5)])
    await store.client.execute_command("XDEL", run.keys.log, "3-0")
    log = EventLog(store, run)

    assert [event.seq for event in await log.read(1)] == [1, 2]
    with pytest.raises(Gap) as gap:
        await log.read(3)
    assert gap.value.first_available == 4
