"""How gateway and operator agree on a sandbox."""

import asyncio

import pytest

from towline.errors import Fenced, LogClosed
from towline.events import runs, sandbox
from towline.events.event import draft
from towline.events.log import EventLog
from towline.events.sandbox import SandboxRecord


@pytest.fixture
def ready(store, run, now):
    async def ready(name="sandbox-1", *, epoch=1, generation=1):
        record = SandboxRecord(name, "Ready", f"unix:/{name}", "local", generation=generation)
        await sandbox.mark_ready(store, run, epoch, record, ms=120, start="cold", now=now)

    return ready


async def types(store, run):
    return [event.type for event in await EventLog(store, run).all()]


async def test_before_any_call_there_is_no_sandbox(store, run):
    assert await sandbox.read(store, run) == SandboxRecord(state="Absent")


async def test_calls_that_want_a_sandbox_at_once_ask_for_one(store, run, now):
    records = await asyncio.gather(*(sandbox.want(store, run, f"tc_{n}", now=now) for n in range(5)))

    assert {record.state for record in records} == {"Starting"}
    assert await types(store, run) == ["sandbox.requested"]
    assert (await EventLog(store, run).state()).want == "sandbox"


async def test_the_operators_answer_is_what_the_next_want_gets(store, run, now, ready):
    await sandbox.want(store, run, "tc_1", now=now)

    await ready()
    await ready()

    assert await sandbox.want(store, run, "tc_2", now=now) == SandboxRecord(
        "sandbox-1", "Ready", "unix:/sandbox-1", "local", generation=1
    )
    assert await types(store, run) == ["sandbox.requested", "sandbox.ready"]
    assert (await EventLog(store, run).state()).want == ""


async def test_a_lost_sandbox_is_told_once_and_wanted_anew(store, run, now, ready):
    await sandbox.want(store, run, "tc_1", now=now)
    await ready()

    first = await sandbox.mark_lost(store, run, 1, "sandbox-1", "OOMKilled", "out of memory", now=now)
    again = await sandbox.mark_lost(store, run, 1, "sandbox-1", "OOMKilled", "out of memory", now=now)
    record = await sandbox.read(store, run)
    wanted = await sandbox.want(store, run, "tc_2", now=now)

    assert (first, again) == (True, False)
    assert (record.state, record.reason, record.address) == ("Lost", "OOMKilled", "")
    assert (wanted.state, wanted.reason, wanted.generation) == ("Starting", "", 2)
    assert await types(store, run) == ["sandbox.requested", "sandbox.ready", "sandbox.lost", "sandbox.requested"]


async def test_a_sandbox_that_could_not_start_answers_the_want(store, run, now):
    await sandbox.want(store, run, "tc_1", now=now)

    await sandbox.mark_lost(store, run, 1, "sandbox-1", "StartFailed", "no such image", now=now, state="Failed")

    record, state = await sandbox.read(store, run), await EventLog(store, run).state()
    assert (record.state, record.message, state.want) == ("Failed", "no such image", "")


async def test_after_a_sandbox_that_nobody_had_wanted_and_that_did_not_start_the_next_one_has_another_name(
    store, run, now, ready
):
    await sandbox.mark_lost(
        store, run, 1, "sandbox-1", "StartTimeout", "not in time", now=now, state="Failed", generation=1
    )

    wanted = await sandbox.want(store, run, "tc_1", now=now)
    assert wanted.generation == 2
    await ready("sandbox-2", generation=2)

    assert await sandbox.read(store, run) == SandboxRecord(
        "sandbox-2", "Ready", "unix:/sandbox-2", "local", generation=2
    )
    assert (await EventLog(store, run).state()).want == ""


async def test_a_late_loss_never_sets_the_generation_back(store, run, now, ready):
    await ready("sandbox-3", generation=3)

    await sandbox.mark_lost(store, run, 1, "sandbox-3", "Evicted", "", now=now, generation=1)

    assert (await sandbox.read(store, run)).generation == 3


async def test_the_late_loss_of_a_predecessor_does_not_answer_for_its_successor(store, run, now, ready):
    await ready("sandbox-1")
    await sandbox.mark_deleted(store, run, 1, "sandbox-1", now=now)
    await sandbox.want(store, run, "tc_2", now=now)

    await sandbox.mark_lost(store, run, 1, "sandbox-1", "Evicted", "", now=now)
    starting = await sandbox.read(store, run)
    await ready("sandbox-2", generation=2)
    await sandbox.mark_lost(store, run, 1, "sandbox-0", "Evicted", "", now=now)

    assert starting.state == "Starting"
    assert (await sandbox.read(store, run)).state == "Ready"


async def test_a_lost_sandbox_does_not_come_back(store, run, now, ready):
    await ready("sandbox-1")
    await sandbox.mark_lost(store, run, 1, "sandbox-1", "Evicted", "", now=now)

    await ready("sandbox-1")

    assert (await sandbox.read(store, run)).state == "Lost"


async def test_after_the_end_only_the_record_changes(store, run, now, ready):
    await ready("sandbox-1")
    await runs.finish(store, run, 1, draft("run.completed", {}, now=now))

    await sandbox.mark_deleted(store, run, 1, "sandbox-1", now=now)

    assert (await sandbox.read(store, run)).state == "Deleted"
    assert await types(store, run) == ["sandbox.ready", "run.completed"]
    with pytest.raises(LogClosed):
        await sandbox.want(store, run, "tc_1", now=now)


async def test_the_operators_record_is_fenced(store, run, ready, harness, said):
    await harness(epoch=3).append([said()])

    with pytest.raises(Fenced):
        await ready(epoch=2)


async def test_a_suspended_sandbox_is_told_once_and_the_next_want_is_answered_by_another(store, run, now, ready):
    await sandbox.want(store, run, "tc_1", now=now)
    await ready()

    for _ in range(2):
        await sandbox.mark_suspended(store, run, 1, "sandbox-1", now=now)

    assert (await sandbox.read(store, run)).state == "Suspended"
    wanted = await sandbox.want(store, run, "tc_2", now=now)
    assert (wanted.state, wanted.generation) == ("Starting", 2)
    assert await types(store, run) == [
        "sandbox.requested",
        "sandbox.ready",
        "sandbox.suspended",
        "sandbox.requested",
    ]
