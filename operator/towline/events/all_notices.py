"""The notices of all runs on one connection: for the operator, which has a queue of its own instead of waiters.

A notice tells when to look, never what to see. It may be lost with its connection; after each new one a None says so.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator

from redis import exceptions

from towline.events.store import Store
from towline.naming import NOTIFY_PATTERN, run_of_channel

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0

Notice = tuple[str, str, str]
"""Namespace and UID of a run, and what changed (the first word of the payload)."""


async def all_notices(store: Store, *, silence_seconds: float = 15.0) -> AsyncIterator[Notice | None]:
    """Endless; None first and after each interruption: any notice may have been missed. Deltas are left out.

    After `silence_seconds` without a message the server is asked for a sign of life, after twice as long given up.
    """
    pause = _FIRST_PAUSE_SECONDS
    while True:
        connection = None
        try:
            connection = await store.subscriber()
            await store.send(connection, "PSUBSCRIBE", NOTIFY_PATTERN)
            silent = False
            while True:
                message = await connection.read_response(timeout=silence_seconds, disconnect_on_error=False)
                if message is None:
                    if silent:
                        raise TimeoutError(f"no sign of life for {2 * silence_seconds:.0f} s")
                    silent = True
                    await store.send(connection, "PING")
                    continue
                silent = False
                if message[0] == b"psubscribe":
                    pause = _FIRST_PAUSE_SECONDS
                    yield None
                elif message[0] != b"pmessage" or message[3].startswith(b"live:"):
                    continue
                elif (run := run_of_channel(message[2])) is not None:
                    yield (*run, message[3].partition(b":")[0].decode())
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError, TimeoutError) as fault:
            log.warning("notices interrupted", extra={"fields": {"store": store.address, "cause": str(fault)}})
        finally:
            if connection is not None:
                await connection.disconnect(nowait=True)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects, hides nothing
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
