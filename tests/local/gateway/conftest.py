"""A world for each test: a run in the session's store, and as many gateways as the test wants."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.local.gateway.doubles import OperatorDouble
from tests.local.gateway.world import World
from towline.api.snapshot import Policy, Rule
from towline.events.event import RunRef
from towline.events.notices import Notices
from towline.events.store import Store

WorldOf = Callable[..., Awaitable[World]]


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    store = Store.connect(valkey_url, patience_seconds=2)
    yield store
    await store.aclose()


@pytest.fixture
async def world_of(store: Store, valkey_url: str, tmp_path: Path) -> AsyncIterator[WorldOf]:
    """Makes the world with one run; the changes are fields of its snapshot."""
    notices = Notices(store)
    secret, identity_key = secrets.token_hex(32).encode(), secrets.token_hex(32).encode()
    made: list[World] = []
    async with aiohttp.ClientSession() as http:

        async def world(**changes: Any) -> World:
            unbound = World(
                *(store, notices, tmp_path, valkey_url, secret, identity_key, http),
                RunRef("", ""),
                None,  # type: ignore[arg-type]
            )
            unbound.run = await unbound.new_run(**changes)
            unbound.operator = OperatorDouble(store, notices, unbound.run, secret, tmp_path)
            made.append(unbound)
            return unbound

        yield world
        for each in made:
            for gateway in each.gateways:
                await gateway.stop()
            await each.operator.stop()
    await notices.aclose()


@pytest.fixture
async def world(world_of: WorldOf) -> World:
    """A run that may use every tool."""
    return await world_of()


@pytest.fixture
def deny_exec() -> Policy:
    return Policy(default="Allow", rules=(Rule(tool="exec", action="Deny"),))
