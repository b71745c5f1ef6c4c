"""One Redis or Valkey, single or Cluster: the connection, the scripts, and what its errors mean to us.

Called by the modules of `events` and by `inbox`. redis-py's own retries are off, because they would repeat behind our
back; ours are bounded, and every script is written so that a repeat changes nothing.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import hiredis
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from towline.errors import (
    CallMismatch,
    Fenced,
    Invalid,
    LogClosed,
    PromptsUnread,
    RunCancelled,
    StoreUnavailable,
    TowlineError,
)

T = TypeVar("T")

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
PATIENCE_SECONDS = 1.0
"""How long a command is repeated before StoreUnavailable: enough for a connection that broke, not for a failover, of
which most callers want to know. Appends wait longer."""
_CONNECTIONS = 64
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
_LUA = Path(__file__).parent / "lua"

_PASSING = {
    "OOM",
    "READONLY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "NOREPLICAS",
    "MISCONF",
    "TRYAGAIN",
    "BUSY",
    "UNBLOCKED",
}
"""First words of error replies of a server that cannot write now and may later. redis-py strips some of them off the
message and keeps them as `status_code`."""


class Store:
    """The event store, connected lazily."""

    def __init__(self, client: "Redis | RedisCluster", address: str, timeout_seconds: float, patience_seconds: float):
        self.client = client
        self.address = address
        """The URL without credentials, for messages."""
        self.timeout_seconds = timeout_seconds
        self.patience_seconds = patience_seconds
        self._faults: tuple[type[Exception], ...] = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
        if isinstance(client, RedisCluster):
            # When a Cluster is down, redis-py 8.1 closes connections that other commands are just opening.
            self._faults += (AttributeError,)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        timeout_seconds: float = 5.0,
        patience_seconds: float = PATIENCE_SECONDS,
        connections: int = _CONNECTIONS,
    ) -> "Store":
        """No I/O yet. `timeout_seconds` bounds connecting and each operation, `patience_seconds` its repeats.

        At most `connections` are open at once (in a Cluster, to each node); more operations wait for one.
        """
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise Invalid(f"event store URL: scheme {scheme[:20]!r}; expected {', '.join(SCHEMES)}")
        options: dict[str, Any] = {
            # Ours bounds each operation instead: on Python 3.11 redis-py sends under asyncio.wait_for when it has a
            # timeout, which can swallow the cancellation of a task (44 of 60 measured).
            "socket_timeout": None,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,  # RESP3 adds pushes and Enterprise handshakes; shapes are the same without legacy responses
            "legacy_responses": False,
        }
        if scheme != "unix":
            options["socket_connect_timeout"] = timeout_seconds
        client: Redis | RedisCluster
        try:
            if scheme.endswith("+cluster"):
                plain = scheme.removesuffix("+cluster") + url[len(scheme) :]
                # Re-reading the whole map after n redirects closes connections under other commands: patch it instead.
                options["reinitialize_steps"] = 0
                client = RedisCluster.from_url(plain, max_connections=connections, **options)
            else:
                pool = BlockingConnectionPool.from_url(
                    url, max_connections=connections, timeout=timeout_seconds, **options
                )
                pool.connection_class = _packing(pool.connection_class)
                client = Redis.from_pool(pool)
        except (ValueError, exceptions.RedisClusterException) as error:
            raise Invalid(f"event store URL {public_address(url)}: {error}") from error
        return cls(client, public_address(url), timeout_seconds, patience_seconds)

    async def ping(self) -> None:
        """One try; raises StoreUnavailable."""
        await self.call(lambda: self.client.execute_command("PING"), patience_seconds=0)

    async def script(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[str | bytes | int],
        *,
        patience_seconds: float | None = None,
    ) -> Any:
        """Runs `lua/<name>.lua`; its reply, or the error its header promises.

        Fenced, LogClosed, RunCancelled, CallMismatch; Invalid for what only a mistake of the caller can cause.
        """
        sha, text = _load(name)

        async def run() -> Any:
            try:
                return await self.client.execute_command("EVALSHA", sha, len(keys), *keys, *args)
            except exceptions.NoScriptError:
                return await self.client.execute_command("EVAL", text, len(keys), *keys, *args)

        return await self.call(run, patience_seconds=patience_seconds)

    async def call(self, operation: Callable[[], Awaitable[T]], *, patience_seconds: float | None = None) -> T:
        """Runs a command that may be repeated; raises StoreUnavailable when the store stays away too long."""
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        deadline = 0.0
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    if isinstance(self.client, RedisCluster):
                        await self.client.initialize()  # else commands before the first reply go to random nodes
                    return await operation()
            except self._faults as error:
                meaning, passing = _understand(error)
                if meaning is not None:
                    raise meaning from None
                now = asyncio.get_running_loop().time()
                deadline = deadline or now + patience
                if not passing or now + pause > deadline:
                    raise StoreUnavailable(f"event store {self.address}: {_told(error)}") from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def subscriber(self) -> Any:
        """A new, open connection outside the pool, for one subscriber: it lives as long as that, and blocks.

        Raises what redis-py raises, or TimeoutError.
        """
        connection: Any
        async with asyncio.timeout(self.timeout_seconds):
            if isinstance(self.client, RedisCluster):
                # Plain PUBLISH reaches subscribers on any node of a Cluster; a random one survives the loss of a node.
                await self.client.initialize()
                node = self.client.get_random_node()
                connection = node.connection_class(**node.connection_kwargs)
            else:
                pool = self.client.connection_pool
                connection = pool.connection_class(**pool.connection_kwargs)
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        return connection

    async def send(self, connection: Any, *command: str | bytes) -> None:
        """A command on a subscriber's connection; raises as `subscriber` does. Its reply comes with the messages."""
        async with asyncio.timeout(self.timeout_seconds):
            await connection.send_command(*command, check_health=False)

    async def aclose(self) -> None:
        await self.client.aclose()


def _packing(connection_class: Any) -> Any:
    """The class with its commands packed in C. redis-py's asyncio connections do it in Python, which is a fifth of what
    an append of ten events costs (44,000 events/s without, 55,000 with)."""

    class Packing(connection_class):  # type: ignore[misc]
        def pack_command(self, *command: Any) -> list[bytes]:
            name, *arguments = command
            return [hiredis.pack_command((*name.split(), *arguments))]

    return Packing


def public_address(url: str) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _told(error: Exception) -> str:
    """Timeouts of asyncio say nothing by themselves."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def _understand(error: Exception) -> tuple[TowlineError | None, bool]:
    """What an error of redis-py means: an error of ours, or (None, whether waiting may help)."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError | exceptions.NoPermissionError):
        return None, False
    if not isinstance(error, exceptions.ResponseError):
        return None, True
    word, _, rest = (getattr(error, "status_code", None) or str(error)).partition(" ")
    if word in _PASSING:
        return None, True
    return _refusal(word, rest) or Invalid(f"event store: {error}"), False


def _refusal(word: str, rest: str) -> TowlineError | None:
    """The error replies our scripts make."""
    match word:
        case "STALE":
            current, _, epoch = rest.partition(" ")
            return Fenced(int(epoch), int(current))
        case "CLOSED":
            return LogClosed(rest)
        case "CANCELLED":
            return RunCancelled(rest)
        case "MISMATCH":
            return CallMismatch(rest)
        case "ORDER":
            return Invalid(f"append out of order: expected n={rest}")
        case "ABSENT":
            return Invalid("the run has not begun, or its history has expired; expected the UID of one that exists")
        case "UNREAD":
            return PromptsUnread(int(rest))
        case "UNKNOWN":
            return Invalid(f"call {rest}: not in the ledger; expected a claimed call")
    return None


@cache
def _load(name: str) -> tuple[str, str]:
    """SHA and text of a script, the prelude in front."""
    text = (_LUA / "_prelude.lua").read_text() + (_LUA / f"{name}.lua").read_text()
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text
