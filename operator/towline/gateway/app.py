"""Wires a gateway from its settings; `__main__.py` and the tests serve what comes out.

It opens no listening socket and reads no environment.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from towline.clock import utc_now
from towline.errors import Invalid, StoreUnavailable
from towline.events.notices import Notices
from towline.events.store import Store
from towline.gateway.api_server import ApiServer
from towline.gateway.background import spawn
from towline.gateway.bound_run import BoundRuns
from towline.gateway.calls import Calls
from towline.gateway.fast_path import FastPath
from towline.gateway.front import Front
from towline.gateway.identity import CachedIdentity, Identity
from towline.gateway.local_identity import LocalIdentity, read_key
from towline.gateway.mcp_server import mcp_server, session_manager
from towline.gateway.token_review import TokenReviewIdentity
from towline.settings import GatewaySettings

log = logging.getLogger(__name__)

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
FORGET_EVERY_SECONDS = 30.0
READY_SECONDS = 1.0


@asynccontextmanager
async def gateway(settings: GatewaySettings) -> AsyncIterator[Front]:
    """The ASGI application, for as long as the context is open. Leaving it settles nothing: others attach."""
    secret = settings.installation_secret_file.read_bytes().strip()
    if len(secret) < 32:
        raise Invalid(f"{settings.installation_secret_file}: {len(secret)} bytes; expected at least 32")
    store = Store.connect(settings.redis_url)
    try:
        async with (
            _identity(settings, store) as identity,
            served(store, identity, secret, list(settings.allowed_hosts)) as front,
        ):
            yield front
    finally:
        await store.aclose()


@asynccontextmanager
async def _identity(settings: GatewaySettings, store: Store) -> AsyncIterator[Identity]:
    """Who issues the callers' tokens: the launcher of a laptop, or the cluster."""
    if settings.identity == "local":
        assert settings.identity_key_file is not None, "the settings demand it"
        yield LocalIdentity(read_key(settings.identity_key_file))
        return
    api_server = ApiServer(settings.api_server, settings.service_account_folder)
    try:
        yield TokenReviewIdentity(
            api_server,
            store,
            namespace=settings.harness_namespace,
            service_account=settings.harness_service_account,
            clock=time.time,
        )
    finally:
        await api_server.aclose()


@asynccontextmanager
async def served(
    store: Store, identity: Identity, installation_secret: bytes, allowed_hosts: list[str]
) -> AsyncIterator[Front]:
    """The same with a store and an identity given."""
    hosts = [*LOCAL_HOSTS, *allowed_hosts]
    patterns = [pattern for host in hosts for pattern in (host, f"{host}:*")]
    notices = Notices(store)
    runs = BoundRuns(store, notices, installation_secret=installation_secret, now=utc_now)
    calls = Calls(store, runs, now=utc_now)
    manager = session_manager(mcp_server(calls, runs), allowed_hosts=patterns)

    async def ready() -> None:
        try:
            await asyncio.wait_for(store.ping(), READY_SECONDS)
        except TimeoutError:
            raise StoreUnavailable(f"the store gave no answer within {READY_SECONDS:.0f} s") from None

    front = Front(
        CachedIdentity(identity, clock=time.time),
        FastPath(calls),
        manager.handle_request,
        ready=ready,
        allowed_hosts=hosts,
    )
    forgetting = spawn(_forget_quiet(runs), "forgetting quiet runs")
    try:
        async with manager.run():
            yield front
    finally:
        forgetting.cancel()
        await runs.aclose()
        await notices.aclose()


async def _forget_quiet(runs: BoundRuns) -> None:
    while True:
        await asyncio.sleep(FORGET_EVERY_SECONDS)
        await runs.forget_quiet()
