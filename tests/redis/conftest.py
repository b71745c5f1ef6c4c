"""Servers and runs for the suite: every test of `store` runs on a single Valkey, a Valkey Cluster and, where the
distribution's Redis is installed, on that too."""

import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.cluster import RedisCluster

from tests.processes import die_with_the_test
from towline.events.appender import Appender
from towline.events.event import Draft, RunRef, draft
from towline.events.notices import Notices
from towline.events.store import Store

NOW = datetime(2026, 11, 29, 17, 18, 27, 123000, tzinfo=UTC)
DISTRIBUTION_REDIS = Path("/usr/bin/redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(binary: str, *options: str) -> Iterator[int]:
    """A server on a loopback port, answering."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tlr-") as folder:
        process = subprocess.Popen(
            [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", *options],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_the_test,
        )
        try:
            wait_for(lambda: answers(port), "the server answers")
            yield port
        finally:
            process.terminate()
            process.wait(10)


def answers(port: int) -> bool:
    try:
        with redis.Redis(port=port, protocol=2, socket_connect_timeout=1) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, f"not within 15 s: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def cluster_url(valkey_binary: str) -> Iterator[str]:
    """Three masters on loopback, a third of the slots each."""
    with ExitStack() as stack:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-config-file", "nodes.conf"]
        ports = [
            stack.enter_context(server(valkey_binary, *options, "--cluster-port", str(free_port()))) for _ in range(3)
        ]
        clients = [stack.enter_context(redis.Redis(port=port, protocol=2)) for port in ports]
        bounds = [0, 5461, 10923, 16384]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for client, port in zip(clients[1:], ports[1:], strict=True):
            bus = client.config_get("cluster-port")["cluster-port"]
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        for client in clients:
            wait_for(lambda c=client: whole(c), "the cluster is whole")
        yield f"redis+cluster://127.0.0.1:{ports[0]}"


def whole(client: Any) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    text = info if isinstance(info, dict) else dict(line.split(":", 1) for line in info.decode().split())
    return text["cluster_state"] == "ok" and text["cluster_known_nodes"] == "3"


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The oldest server we support, as distributions ship it."""
    if not DISTRIBUTION_REDIS.exists():
        pytest.skip("no redis-server of the distribution")
    with server(str(DISTRIBUTION_REDIS)) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(params=["valkey_url", "cluster_url", "redis_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = Store.connect(url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def notices(store: Store) -> AsyncIterator[Notices]:
    opened = Notices(store)
    yield opened
    await opened.aclose()


@pytest.fixture
def cut_subscriptions(store: Store) -> Callable[[], Awaitable[None]]:
    """What a network, an impatient administrator or the death of a master does."""

    async def cut() -> None:
        nodes = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(store.client, RedisCluster) else {}
        await store.client.execute_command("CLIENT KILL", "TYPE", "pubsub", **nodes)

    return cut


@pytest.fixture
def run() -> RunRef:
    """A run nobody else uses."""
    return RunRef("team-" + secrets.token_hex(3), secrets.token_hex(8), "hello")


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def said() -> Callable[..., Draft]:
    """Makes a draft that tells `text`; one that nothing is kept of."""

    def make(text: object = "", type: str = "turn.retrying", **options: Any) -> Draft:
        return draft(type, {"on": str(text)}, now=NOW, **options)

    return make


@pytest.fixture
def harness(store: Store, run: RunRef) -> Callable[..., Appender]:
    """Makes the appender of one more harness process."""

    def make(epoch: int = 1, **options: Any) -> Appender:
        options = {"src": "harness", "nonce": secrets.token_hex(4), **options}
        return Appender(store, run, epoch=epoch, **options)

    return make


class LosesReplies:
    """A client whose connection breaks after the server has acted and before its reply arrives, `times` times."""

    def __init__(self, client: Any, times: int) -> None:
        self._client, self.times = client, times

    async def execute_command(self, *command: Any) -> Any:
        reply = await self._client.execute_command(*command)
        if self.times > 0:
            self.times -= 1
            raise redis.exceptions.ConnectionError("the reply was lost")
        return reply

    async def aclose(self) -> None:
        await self._client.aclose()


@pytest.fixture
def lose_replies(store: Store) -> Callable[[int], None]:
    def lose(times: int) -> None:
        store.client = LosesReplies(store.client, times)  # type: ignore[assignment]

    return lose


class Backup:
    """What a replica had when its master died: the keys of a run, put back over what came later."""

    def __init__(self, store: Store, run: RunRef) -> None:
        keys = run.keys
        self._store = store
        self._keys = [keys.log, keys.meta, keys.inbox, keys.calls, keys.sandbox]
        self._dumps: dict[str, bytes | None] = {}

    async def take(self) -> None:
        for key in self._keys:
            self._dumps[key] = await self._store.client.execute_command("DUMP", key)

    async def promote(self) -> None:
        for key, dump in self._dumps.items():
            if dump is None:
                await self._store.client.execute_command("DEL", key)
            else:
                await self._store.client.execute_command("RESTORE", key, 0, dump, "REPLACE")


@pytest.fixture
def replica(store: Store, run: RunRef) -> Backup:
    return Backup(store, run)
