"""Notices: one pub/sub connection that wakes whoever waits for a change of a run, for any number of runs.

Called by followers, the gateway and the launcher. A notice says that something changed, never what: read the store. It
may be lost with its connection, so a new connection wakes everybody.
"""

import asyncio
import logging
import random
from types import TracebackType
from typing import Any

from redis import exceptions

from towline.events.event import RunRef
from towline.events.store import Store

log = logging.getLogger(__name__)

KINDS = frozenset({"log", "live", "sandbox", "inbox", "waiting", "cancel", "want", "lost", "closed"})
"""First words of the payloads."""

BROKEN = "broken"
"""The kind that a watch hears, if it wants to, when the connection breaks; all the others come with the next one."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0


class Watch:
    """One waiter on one run; an async context manager. Entered, it hears everything published from then on."""

    def __init__(self, notices: "Notices", channel: bytes, *, breaks: bool = False) -> None:
        self._notices, self._channel = notices, channel
        self._breaks = breaks
        self._kinds: set[str] = set()
        self._woken = asyncio.Event()
        self.entered = False

    async def __aenter__(self) -> "Watch":
        try:
            await self._notices._add(self._channel, self)
        except BaseException:
            await self._notices._remove(self._channel, self)
            raise
        self.entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._notices._remove(self._channel, self)

    async def wait(self, timeout: float) -> set[str]:
        """The kinds of notices since the last wait, at once if there are any; empty after `timeout` seconds.

        All kinds after a broken connection: any of them may have been missed.
        """
        if not self._kinds:
            try:
                async with asyncio.timeout(timeout):
                    await self._woken.wait()
            except TimeoutError:
                return set()
        kinds, self._kinds = self._kinds, set()
        self._woken.clear()
        return kinds

    def wake(self, kinds: frozenset[str] | set[str]) -> None:
        self._kinds |= kinds
        self._woken.set()

    def broke(self) -> None:
        if self.entered and self._breaks:
            self.wake({BROKEN})


class _Channel:
    """The watches of one run, and whether the server has confirmed the subscription."""

    def __init__(self) -> None:
        self.watches: set[Watch] = set()
        self.confirmed = asyncio.Event()


class Notices:
    """Opened by its first watch; reconnects by itself until closed.

    After `silence_seconds` without a message the server is asked for a sign of life; after twice as long it is given
    up.
    """

    def __init__(self, store: Store, *, silence_seconds: float = 15.0) -> None:
        self._store = store
        self._silence_seconds = silence_seconds
        self._channels: dict[bytes, _Channel] = {}
        self._connection: Any = None
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._pause = _FIRST_PAUSE_SECONDS

    def watch(self, run: RunRef, *, breaks: bool = False) -> Watch:
        """A watch on one run; enter it before reading what it is to keep fresh. `breaks`: it hears BROKEN, too, and so
        learns at once that the store may be gone."""
        return Watch(self, run.keys.notify.encode(), breaks=breaks)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _add(self, channel: bytes, watch: Watch) -> None:
        entry = self._channels.get(channel)
        if entry is None:
            entry = self._channels[channel] = _Channel()
        entry.watches.add(watch)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="notices")
        elif not entry.confirmed.is_set():
            await self._send("SUBSCRIBE", channel)
        try:
            async with asyncio.timeout(self._store.timeout_seconds):
                await entry.confirmed.wait()
        except TimeoutError:
            pass  # the store is away; the subscription comes with the next connection, which wakes this watch

    async def _remove(self, channel: bytes, watch: Watch) -> None:
        entry = self._channels.get(channel)
        if entry is None:
            return
        entry.watches.discard(watch)
        if not entry.watches:
            del self._channels[channel]
            await self._send("UNSUBSCRIBE", channel)

    async def _send(self, *command: str | bytes) -> None:
        """A command on the open connection; without one there is nothing to do, the next one subscribes to all."""
        async with self._sending:
            connection = self._connection
            if connection is None or not connection.is_connected:
                return
            try:
                await self._store.send(connection, *command)
            except (exceptions.RedisError, OSError, AttributeError):
                pass  # the reader sees the same broken connection (AttributeError: broken while this was queued)

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # whatever it is, those who wait must hear again
                fields = {"store": self._store.address, "cause": str(error)}
                log.warning("notices interrupted", extra={"fields": fields})
            await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects, hides nothing
            self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _listen(self) -> None:
        """One connection, from its subscriptions to its end."""
        connection = await self._store.subscriber()
        try:
            async with self._sending:
                self._connection = connection
                channels = list(self._channels)
                for start in range(0, len(channels), 500):
                    await self._store.send(connection, "SUBSCRIBE", *channels[start : start + 500])
            silent = False
            while True:
                message = await connection.read_response(timeout=self._silence_seconds, disconnect_on_error=False)
                if message is not None:
                    silent = False
                    self._hear(message)
                elif not silent:
                    silent = True
                    await self._send("PING")
                else:
                    raise TimeoutError(f"no sign of life for {2 * self._silence_seconds:.0f} s")
        finally:
            self._connection = None
            for entry in self._channels.values():
                entry.confirmed.clear()
                for watch in entry.watches:
                    watch.broke()
            await connection.disconnect(nowait=True)

    def _hear(self, message: list[Any]) -> None:
        self._pause = _FIRST_PAUSE_SECONDS
        entry = self._channels.get(message[1])
        if entry is None:
            return
        if message[0] == b"message":
            kind = message[2].partition(b":")[0].decode()
            for watch in entry.watches:
                watch.wake({kind})
        elif message[0] == b"subscribe":
            # Only now is nothing lost any more: who read before may have read too early. A watch that is still being
            # entered has an owner who has read nothing yet.
            entry.confirmed.set()
            for watch in entry.watches:
                if watch.entered:
                    watch.wake(KINDS)
