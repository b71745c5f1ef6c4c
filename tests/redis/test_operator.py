"""What only the operator reads and writes: glances, the register of harnesses, the index, all notices, an end."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import datetime

import pytest

from towline.events import calls, index, pods, runs, sandbox
from towline.events.all_notices import Notice, all_notices
from towline.events.appender import Appender
from towline.events.event import Draft, RunRef, draft
from towline.events.glance import glance, open_logs, states
from towline.events.store import Store
from towline.events.totals import Totals
from towline.naming import harness_pod_name

BOUND = 5.0


async def test_a_glance_shows_state_sandbox_and_last_event_at_once(
    store: Store, run: RunRef, now: datetime, said: Callable[..., Draft], harness: Callable[..., Appender]
) -> None:
    await runs.create(store, run, b'{"a":1}', now=now)
    await harness().append([said("one"), said("two")], Totals(turns=1))
    await sandbox.want(store, run, "tc_1", now=now)

    seen = await glance(store, run, with_spec=True)

    assert (seen.state.head, seen.state.totals.turns, seen.state.want) == (4, 1, "sandbox")
    assert (seen.sandbox.state, seen.sandbox.generation) == ("Starting", 1)
    assert seen.last is not None
    assert (seen.last.type, seen.last.seq) == ("sandbox.requested", 4)
    assert seen.terminal is None
    assert seen.spec == b'{"a":1}'


async def test_the_last_event_of_a_closed_log_is_its_end_however_large(
    store: Store, run: RunRef, now: datetime
) -> None:
    await runs.create(store, run, b"{}", now=now)
    await runs.finish(store, run, 1, draft("run.failed", {"reason": "X", "message": "m" * 100_000}, now=now))

    seen = await glance(store, run)

    assert seen.terminal is not None
    assert len(seen.terminal.payload["message"]) == 100_000
    assert seen.spec is None, "it was not asked for"

    await store.client.delete(run.keys.blob(seen.terminal.id))
    again = await glance(store, run)
    assert again.terminal is not None
    assert (again.terminal.type, again.terminal.payload) == ("run.failed", {})


async def test_a_run_that_was_never_created_is_absent(store: Store, run: RunRef) -> None:
    seen = await glance(store, run, with_spec=True)

    assert (seen.state.absent, seen.last, seen.spec, seen.sandbox.state) == (True, None, None, "Absent")


async def test_the_states_of_many_runs_come_in_their_order(store: Store, now: datetime) -> None:
    tag = secrets.token_hex(4)
    many = [RunRef(tag, f"{tag}{number}", f"run-{number}") for number in range(3)]
    await runs.create(store, many[1], b"{}", now=now)

    assert [each.name for each in await states(store, many)] == ["", "run-1", ""]


async def test_of_many_runs_one_sees_which_have_no_end(store: Store, now: datetime) -> None:
    tag = secrets.token_hex(4)
    many = [RunRef(tag, f"{tag}{number}", f"run-{number}") for number in range(3)]
    for one in many[:2]:
        await runs.create(store, one, b"{}", now=now)
    await runs.finish(store, many[0], 2, draft("run.cancelled", {"reason": "enough"}, now=now))

    assert await open_logs(store, many) == [False, True, False], "of the last one the store knows nothing"


async def test_a_glance_shows_whether_the_gateway_knows_the_harness(store: Store, run: RunRef, now: datetime) -> None:
    await runs.create(store, run, b"{}", now=now)
    name = harness_pod_name(run.uid, 1)

    assert not (await glance(store, run, harness=name, with_spec=True)).registered
    await pods.register_harness(store, name, run, 1)
    seen = await glance(store, run, harness=name, with_spec=True)

    assert (seen.registered, seen.spec) == (True, b"{}")
    assert (await glance(store, run)).registered, "nobody was asked for"


async def test_a_harness_pod_speaks_for_its_run_until_it_is_forgotten(store: Store, run: RunRef) -> None:
    name = harness_pod_name(run.uid, 3)
    assert await pods.harness_of(store, name) is None

    await pods.register_harness(store, name, run, 3)
    assert await pods.harness_of(store, name) == pods.HarnessPod(run, 3)
    await pods.forget_harness(store, name)

    assert await pods.harness_of(store, name) is None


async def test_an_installation_knows_its_own_runs(store: Store, run: RunRef) -> None:
    ours, theirs = secrets.token_hex(4), secrets.token_hex(4)
    other = RunRef(run.namespace, secrets.token_hex(8))
    for each in (run, run, other):
        await index.add(store, ours, each)
    await index.remove(store, ours, other)

    assert await index.members(store, ours) == [RunRef(run.namespace, run.uid)]
    assert await index.members(store, theirs) == []


async def test_a_history_ends_as_a_whole(
    store: Store, run: RunRef, now: datetime, harness: Callable[..., Appender]
) -> None:
    await runs.create(store, run, b"{}", now=now)
    large = draft("turn.waiting", {"on": "x" * 100_000}, now=now)
    await harness().append([large])
    await sandbox.want(store, run, "tc_1", now=now)

    await runs.expire(store, run, 100)

    keys = run.keys
    for key in (keys.log, keys.meta, keys.spec, keys.sandbox, keys.blob(large.id)):
        assert 0 < await store.client.ttl(key) <= 100, key


async def test_the_large_data_of_an_event_that_was_refused_goes_by_itself(
    store: Store, run: RunRef, now: datetime, harness: Callable[..., Appender]
) -> None:
    await runs.create(store, run, b"{}", now=now)
    claim = {"epoch": 1, "call_id": "tc_1", "name": "write_file", "args_hash": "a1"}
    uses = [draft("agent.tool_use", {"input": {"content": "x" * 100_000}}, now=now) for _ in range(2)]

    for use in uses:
        await calls.claim(store, run, event=use, **claim)  # type: ignore[arg-type]

    logged, refused = [await store.client.ttl(run.keys.blob(use.id)) for use in uses]
    assert logged == -1, "kept for good"
    assert 0 < refused <= 3600


async def test_large_data_that_is_written_again_is_kept_for_good_all_the_same(
    store: Store, run: RunRef, now: datetime
) -> None:
    large = draft("run.status", {"reason": "x" * 100_000}, now=now)

    for _ in range(2):
        await runs.append_once(store, run, 1, [large], guard="g")

    assert await store.client.ttl(run.keys.blob(large.id)) == -1


@pytest.fixture
async def notices(store: Store) -> AsyncIterator[AsyncIterator[Notice | None]]:
    heard = all_notices(store, silence_seconds=0.2)
    yield heard
    await heard.aclose()  # type: ignore[attr-defined]


async def until(heard: AsyncIterator[Notice | None], uid: str) -> Notice:
    async with asyncio.timeout(BOUND):
        async for notice in heard:
            if notice is not None and notice[1] == uid:
                return notice
    raise AssertionError("the notices ended")


async def test_the_notices_of_all_runs_come_on_one_connection(
    store: Store, run: RunRef, now: datetime, notices: AsyncIterator[Notice | None]
) -> None:
    assert await asyncio.wait_for(anext(notices), BOUND) is None, "subscribed: look at everything"
    other = RunRef(run.namespace, secrets.token_hex(8), "other")

    await runs.create(store, run, b"{}", now=now)
    assert await until(notices, run.uid) == (run.namespace, run.uid, "log")
    await runs.create(store, other, b"{}", now=now)
    await runs.request_cancel(store, other, "enough")

    assert (await until(notices, other.uid))[2] == "log"
    assert (await until(notices, other.uid))[2] == "cancel"


async def test_the_end_of_a_run_is_a_notice_of_its_own(
    store: Store, run: RunRef, now: datetime, notices: AsyncIterator[Notice | None]
) -> None:
    assert await asyncio.wait_for(anext(notices), BOUND) is None
    await runs.create(store, run, b"{}", now=now)
    assert (await until(notices, run.uid))[2] == "log"  # on a Cluster it may arrive long after the write

    await runs.finish(store, run, 2, draft("run.failed", {"reason": "X", "message": ""}, now=now))

    kinds = [(await until(notices, run.uid))[2] for _ in range(2)]
    assert kinds == ["log", "closed"]


async def test_after_silence_and_after_a_broken_connection_notices_go_on(
    store: Store, run: RunRef, now: datetime, notices: AsyncIterator[Notice | None]
) -> None:
    assert await asyncio.wait_for(anext(notices), BOUND) is None
    waiting = asyncio.ensure_future(until(notices, run.uid))
    await asyncio.sleep(0.5)  # a ping or two

    await runs.create(store, run, b"{}", now=now)

    assert (await waiting)[2] == "log"
