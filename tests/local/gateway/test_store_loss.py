"""Failovers to a replica that lags: harness, gateway, tool server and readers on real servers, again and again.

The replica is cut off from its master some time before it takes over, so that it really lacks the tail.
"""

import asyncio
import contextlib
import os
import random
import secrets
import socket
import sys
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from redis.asyncio import Redis

from tests.local.gateway.world import Gateway, snapshot_of
from towline.api.snapshot import Sandbox
from towline.clock import utc_now
from towline.errors import Rewound, StoreUnavailable
from towline.events import runs as run_events
from towline.events import sandbox as sandbox_events
from towline.events.appender import Appender
from towline.events.event import RunRef, draft
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.events.totals import Totals
from towline.gateway.local_identity import mint
from towline.harness.tools import Gateway as GatewayClient
from towline.harness.transcript import ToolUse
from towline.naming import sandbox_key, sandbox_name

FAILOVERS = 20


class Server:
    """A Valkey on a port of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.redis = Redis(port=self.port, protocol=2, legacy_responses=False)

    async def start(self) -> "Server":
        self._folder.mkdir()
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        options += ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
        self._process = await asyncio.create_subprocess_exec(self._binary, *options, stdout=asyncio.subprocess.DEVNULL)
        while True:
            with contextlib.suppress(Exception):
                await self.redis.execute_command("PING")
                return self
            await asyncio.sleep(0.02)

    async def follow(self, master: "Server") -> None:
        """Become its replica, up to date."""
        await self.redis.execute_command("REPLICAOF", "127.0.0.1", master.port)
        while (await self.redis.execute_command("ROLE"))[3] != b"connected":
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self.redis.aclose()


class Address:
    """What clients dial: the address of the service, behind which the master changes."""

    def __init__(self) -> None:
        self._target: int | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def point_to(self, port: int | None) -> None:
        self._target = port
        for writer in self._open:
            writer.transport.abort()

    async def stop(self) -> None:
        self.point_to(None)
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target is None:
            writer.transport.abort()
            return
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, forth}
        try:
            await asyncio.wait(
                [asyncio.create_task(_pump(reader, forth)), asyncio.create_task(_pump(back, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._open -= {writer, forth}
            writer.transport.abort()
            forth.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)


class Pair:
    """A master behind the address, and its failovers."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary, self._folder = binary, folder
        self.address, self._number = Address(), 0

    async def server(self) -> Server:
        self._number += 1
        return await Server(self._binary, self._folder / f"valkey-{self._number}").start()

    async def start(self) -> None:
        await self.address.start()
        self.master = await self.server()
        self.address.point_to(self.master.port)

    async def stop(self) -> None:
        await self.address.stop()
        await self.master.kill()

    async def lagging(self) -> Server:
        """A replica that was up to date, and is cut off now."""
        replica = await self.server()
        await replica.follow(self.master)
        await replica.redis.execute_command("REPLICAOF", "NO", "ONE")
        return replica

    async def promote(self, replica: Server, run: RunRef) -> tuple[int, int]:
        """The master is gone, the replica in its place; the log's heads there."""
        self.address.point_to(None)
        heads = [int(await each.redis.hget(run.keys.meta, "head") or 0) for each in (self.master, replica)]
        await self.master.kill()
        self.master = replica
        self.address.point_to(replica.port)
        return heads[0], heads[1]


class Reader:
    """A consumer that does as the page on events says: drop what lies beyond a loss, and read on."""

    def __init__(self, store: Store, run: RunRef, notices: Notices) -> None:
        self._store, self._run, self._notices = store, run, notices
        self.events, self.rewound = [], []

    async def read(self) -> None:
        incarnation = 1
        while True:
            from_seq = self.events[-1].seq + 1 if self.events else 1
            try:
                async for event in follow(
                    self._store, self._run, from_seq, notices=self._notices, incarnation=incarnation
                ):
                    self.events.append(event)
                    if event.type == "store.lost":
                        incarnation = max(incarnation, event.payload["incarnation"])
                return
            except Rewound as loss:
                self.rewound.append(loss.head)
                incarnation = loss.incarnation
                self.events = [event for event in self.events if event.seq <= loss.head]
            except StoreUnavailable:
                await asyncio.sleep(0.05)


class Harness:
    """Answers that ask for a tool, each with its call, like the loop: one after the other, all remembered."""

    def __init__(self, store: Store, run: RunRef, http: aiohttp.ClientSession, url: str, token: Path) -> None:
        self.appender = Appender(store, run, src="harness", epoch=1, nonce=secrets.token_hex(8))
        self._gateway = GatewayClient(http, url, token, self.appender)
        self.appended, self.called = [], []
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            call_id = f"tc_{len(self.called)}"
            asks = draft(
                "agent.message", {"message_id": call_id, "content": [], "stop_reason": "tool_use"}, now=utc_now()
            )
            await self.appender.append([asks], Totals(output_tokens=1))
            self.appended.append(asks.id)
            command = f"echo {call_id} >> ran; sleep {random.choice((0, 0, 0.05, 0.2))}; echo out"
            result = await self._gateway.call(ToolUse(call_id, "exec", {"command": command}))
            assert (result.outcome, result.text) == ("ok", "out\n")
            self.called.append(call_id)

    async def does(self, steps: int) -> None:
        done = len(self.called)
        while len(self.called) < done + steps:
            await asyncio.sleep(0.005)


async def says_that_the_sandbox_is_there(store: Store, notices: Notices, run: RunRef, record: SandboxRecord) -> None:
    """The operator's part: what exists is said again whenever the record does not say it."""
    async with notices.watch(run) as watch:
        while True:
            with contextlib.suppress(StoreUnavailable):
                now = await sandbox_events.read(store, run)
                wanted = (await EventLog(store, run).state()).want
                if wanted or now.state == "Starting":
                    await sandbox_events.mark_ready(store, run, 1, record, ms=1, start="cold", now=utc_now())
            await watch.wait(0.5)


@pytest.fixture
async def pair(valkey_binary, tmp_path):
    pair = Pair(valkey_binary, tmp_path)
    await pair.start()
    yield pair
    await pair.stop()


@pytest.fixture
async def store(pair):
    store = Store.connect(f"redis://127.0.0.1:{pair.address.port}/0", patience_seconds=2)
    yield store
    await store.aclose()


@pytest.mark.timeout(240)
async def test_twenty_failovers_to_a_lagging_replica_lose_nothing_run_nothing_twice_and_are_all_told(
    pair, store, tmp_path
):
    secret, identity_key = secrets.token_hex(32).encode(), secrets.token_hex(32).encode()
    run = RunRef("test", secrets.token_hex(16), "r")
    snapshot = snapshot_of(run, sandbox=Sandbox(start_timeout_seconds=20))
    await run_events.create(store, run, snapshot.to_json(), now=utc_now())
    name, path, volume = sandbox_name(run.uid, 1), tmp_path / "tool.sock", tmp_path / "volume"
    volume.mkdir()
    tool_server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "towline.toolserver"),
        env={
            "TOWLINE_LISTEN": f"unix:{path}",
            "TOWLINE_SANDBOX_NAME": name,
            "TOWLINE_SANDBOX_KEY": sandbox_key(secret, name),
            "TOWLINE_VOLUME": str(volume),
            "PATH": os.defpath,
            "PYTHONPATH": ":".join(sys.path),
        },
    )
    record = SandboxRecord(name, "Ready", f"unix:{path}", "local", "", "", 1)
    lifetime = utc_now() - utc_now().replace(year=2025)
    token = mint(identity_key, namespace=run.namespace, uid=run.uid, epoch=1, now=utc_now(), lifetime=lifetime)
    (tmp_path / "token").write_text(token)
    notices, gateway = Notices(store), Gateway(store, identity_key, secret)
    operator = asyncio.create_task(says_that_the_sandbox_is_there(store, notices, run, record))
    reader = Reader(store, run, notices)
    reading = asyncio.create_task(reader.read())
    losses = []
    try:
        async with aiohttp.ClientSession() as http:
            harness = Harness(store, run, http, gateway.url, tmp_path / "token")
            replica = await pair.lagging()  # so the first failover takes the sandbox' record with it
            working = asyncio.create_task(harness.run())
            for number in range(FAILOVERS):
                if number:
                    replica = await pair.lagging()
                await _either(harness.does(random.randint(1, 4)), working)
                if not number:  # of a master without a replica: what it says is safe is not
                    await _either(_until_asked_what_is_safe(pair.master, run), working)
                await asyncio.sleep(random.random() * 0.2)
                head, survived = await pair.promote(replica, run)
                assert head > survived, "the replica lacked a tail"
                losses.append((survived, number + 2))
                await _either(_until_told(store, run, number + 2), working)
            await _either(harness.does(2), working)
            harness.stopping = True
            await working
            await harness.appender.finish(draft("run.completed", {}, now=utc_now()))
            await asyncio.wait_for(reading, 60)
    finally:
        for task in (operator, reading):
            task.cancel()
        await asyncio.wait([operator, reading])
        await gateway.stop()
        await notices.aclose()
        tool_server.kill()
        await tool_server.wait()

    log = await EventLog(store, run).all()
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert len({event.id for event in log}) == len(log)
    assert [event.id for event in log if event.type == "agent.message"] == harness.appended, "all, once, in order"
    for kind in ("agent.tool_use", "agent.tool_result"):
        assert [event.payload["call_id"] for event in log if event.type == kind] == harness.called
    assert Counter((volume / "workspace" / "ran").read_text().split()) == Counter(harness.called), "each ran once"
    told = [event.payload for event in log if event.type == "store.lost"]
    assert [(each["head"], each["incarnation"]) for each in told] == losses
    assert [event.line() for event in reader.events] == [event.line() for event in log]
    assert (await EventLog(store, run).state()).totals.output_tokens == len(harness.appended)


async def _until_told(store: Store, run: RunRef, incarnation: int) -> None:
    while True:
        with contextlib.suppress(StoreUnavailable):
            if (await EventLog(store, run).state()).incarnation >= incarnation:
                return
        await asyncio.sleep(0.01)


async def _until_asked_what_is_safe(master: Server, run: RunRef) -> None:
    while not await master.redis.hget(run.keys.meta, "confirming"):
        await asyncio.sleep(0.02)
    await asyncio.sleep(1.0)  # and the answer acted on


async def _either(wait, working) -> None:
    """Wait, unless the harness fails first."""
    waiting = asyncio.ensure_future(wait)
    async with asyncio.timeout(60):
        await asyncio.wait([waiting, working], return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        waiting.cancel()
        working.result()
    await waiting
