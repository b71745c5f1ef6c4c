"""The store goes away under a running harness: it waits a while, then leaves; nothing is lost and nothing twice."""

import asyncio
import subprocess

import pytest

from tests.local.harness.conftest import harness_run, scripted
from tests.local.harness.gateway import result, serving
from towline.clock import utc_now
from towline.events.event import draft
from towline.events.log import EventLog
from towline.exit_codes import HarnessExit
from towline.harness.store_ports import LogSink

STEPS = [
    {"text": "word " * 60, "chunk_milliseconds": 20, "tool_calls": [{"name": "exec", "arguments": {}}]},
    {"text": "Done."},
]


class Server:
    """A Valkey on a unix socket that can be killed, and started again on the same data."""

    def __init__(self, binary, folder):
        self._command = [binary, "--port", "0", "--unixsocket", "valkey.sock", "--appendonly", "yes", "--save", ""]
        self._folder = folder
        self.url = f"unix://{folder}/valkey.sock"

    def start(self):
        self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=subprocess.DEVNULL)

    def kill(self):
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
async def mortal(valkey_binary, tmp_path):
    server = Server(valkey_binary, tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def run(mortal, tmp_path):
    async with harness_run(mortal.url, tmp_path) as one:
        one.store.patience_seconds = 15.0
        yield one


async def test_a_store_that_comes_back_soon_is_waited_for_in_the_middle_of_an_answer(mortal, run):
    async with serving(result()) as (gateway, url):
        await run.create(scripted(*STEPS), tools=["exec"])
        process = await run.start(gateway_url=url)
        await run.live_text(40)
        mortal.kill()
        await asyncio.sleep(2)  # longer than the answer takes: it must be recorded when there is a store again
        assert gateway.calls == []  # no call without the record of who asked for it
        mortal.start()
        code, _ = await run.end(process)

    assert code == 0
    types = await run.types()
    assert types.count("agent.message") == 2
    assert types.count("agent.message_aborted") == 0
    assert len(gateway.calls) == 1


async def test_a_store_that_stays_away_ends_the_harness_and_the_next_one_goes_on(mortal, run):
    async with serving(result()) as (gateway, url):
        await run.create(scripted(*STEPS), tools=["exec"])
        process = await run.start(gateway_url=url)
        await run.live_text(40)
        mortal.kill()
        code, _ = await run.end(process, within=60)
        assert code == HarnessExit.STORE_AWAY
        mortal.start()

        assert (await run.work(epoch=2, gateway_url=url))[0] == 0

    types = await run.types()
    assert types.count("agent.message") == 2
    assert types.count("run.completed") == 1
    assert len(gateway.calls) == 1


async def test_a_very_long_log_lets_go_of_what_lies_before_the_last_compaction_but_one(run, monkeypatch):
    monkeypatch.setattr("towline.harness.store_ports.TRIM_ABOVE", 30)
    await run.create(scripted())
    sink, log = LogSink(run.store, run.ref, epoch=1, compacted=0), EventLog(run.store, run.ref)

    async def grow():
        for type in [*["turn.retrying"] * 20, "context.compacted"]:
            await sink.append([draft(type, {}, now=utc_now())])

    await grow()
    assert len(await log.all()) == 22  # there is no place before to go back to
    await grow()

    kept = await log.since(22)
    assert [kept[0].type, kept[-1].type] == ["context.compacted"] * 2
    assert await run.store.client.execute_command("XLEN", run.ref.keys.log) == len(kept) == 22
