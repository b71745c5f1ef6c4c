"""The connection: what is told of a store that does not answer, or cannot write."""

import asyncio
import random
import time

import pytest

from towline.errors import Invalid, StoreUnavailable
from towline.events import runs
from towline.events.appender import Appender
from towline.events.durable import Durability
from towline.events.log import EventLog
from towline.events.store import Store


async def test_a_store_that_answers_pings(store):
    await store.ping()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_a_store_out_of_reach_is_named_without_its_password(scheme):
    store = Store.connect(f"{scheme}://ada:s3cret@127.0.0.1:1/?password=s3cret", timeout_seconds=0.5)

    with pytest.raises(StoreUnavailable) as refused:
        await store.ping()

    assert f"{scheme}://127.0.0.1:1" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    await store.aclose()


async def test_an_append_waits_for_a_store_that_is_away_and_then_tells(run, said):
    store = Store.connect("unix:///nowhere/valkey.sock")
    appender = Appender(store, run, src="harness", epoch=1, nonce="n", patience_seconds=0.4)
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match=r"unix:///nowhere/valkey\.sock"):
        await appender.append([said()])

    assert time.monotonic() - began > 0.2
    await store.aclose()


@pytest.mark.parametrize("url", ["http://x", "localhost:6379", "redis://host:port/0", ""])
def test_a_url_that_is_none_of_ours_is_refused(url):
    with pytest.raises(Invalid, match="event store URL"):
        Store.connect(url)


async def test_an_append_outlives_a_server_that_refuses_writes_for_a_while(valkey_url, run, said):
    store = Store.connect(valkey_url)
    appender = Appender(store, run, src="harness", epoch=1, nonce="n")
    await appender.append([said("before")])
    await store.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailable, match="replicas to write"):
            await runs.append_once(store, run, 1, [said("impatient")], guard="x")
        waiting = asyncio.create_task(appender.append([said("patient")]))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    finally:
        await store.client.config_set("min-replicas-to-write", 0)

    assert await waiting == [2]
    assert [event.payload["on"] for event in await EventLog(store, run).all()] == ["before", "patient"]
    await store.aclose()


async def test_a_full_store_refuses_a_change_as_a_whole(valkey_url, run, said):
    store = Store.connect(valkey_url, patience_seconds=0)
    await runs.append_once(store, run, 1, [said("before")], guard="a")
    await store.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await runs.append_once(store, run, 2, [said("refused")], guard="b")
    finally:
        await store.client.config_set("maxmemory", 0)

    state = await EventLog(store, run).state()
    assert (state.head, state.epoch) == (1, 1)
    await store.aclose()


async def test_what_cannot_be_written_now_is_not_said_to_be_durable(valkey_url, run, said):
    store = Store.connect(valkey_url, patience_seconds=0)
    await Appender(store, run, src="harness", epoch=1, nonce="n").append([said()])
    durability = Durability(store, run, "p:harness", "n")
    assert (await durability.ask()).durable
    await store.client.config_set("maxmemory", 1)
    try:
        standing = await durability.ask()
    finally:
        await store.client.config_set("maxmemory", 0)

    assert (standing.n, standing.durable) == (1, False)
    await store.aclose()


async def test_scripts_are_loaded_anew_after_the_server_forgot_them(store, run, harness, said):
    appender = harness()
    await appender.append([said()])
    await store.client.script_flush()

    assert await appender.append([said()]) == [2]


async def test_a_task_that_talks_to_the_store_can_be_cancelled_at_any_moment(store, run):
    """redis-py's own socket_timeout makes it swallow most of these on Python 3.11."""
    log = EventLog(store, run)

    async def read() -> None:
        while True:
            await log.page(1, 10)

    survived = 0
    for _ in range(40):
        reader = asyncio.create_task(read())
        await asyncio.sleep(random.uniform(0.002, 0.007))
        reader.cancel()
        _, pending = await asyncio.wait([reader], timeout=0.5)
        survived += len(pending)
        while pending:
            reader.cancel()
            _, pending = await asyncio.wait([reader], timeout=0.5)

    assert survived == 0


async def test_a_store_that_accepts_and_never_answers_is_given_up():
    connections = []
    silent = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    store = Store.connect(f"redis://127.0.0.1:{port}", timeout_seconds=0.2, patience_seconds=0)

    with pytest.raises(StoreUnavailable, match="no answer in time"):
        await store.ping()
    with pytest.raises(TimeoutError):
        await store.subscriber()

    await store.aclose()
    for writer in connections:
        writer.close()
    silent.close()
