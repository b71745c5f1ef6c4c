"""The watches: Kopf tells of objects, each goes into the cache and its run's key into the queue, and that is all.

The only file that imports Kopf; its settings and their reasons are in docs/decisions/0011-reconcile.md. Three
Kopf operators, since one watches either the whole cluster or some namespaces: our kinds everywhere, pods in our two
namespaces, policies where the sandboxes are. Kopf patches nothing and keeps nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
from kubernetes.aio.client.configuration import Configuration

from towline.controller.cache import Cache
from towline.controller.policies import Policies
from towline.controller.ports import Namespaces
from towline.controller.queue import WorkQueue
from towline.controller.run_objects import Key, key_of
from towline.controller.sweep import UNFINISHED
from towline.kube.kinds import (
    AGENT_RUN,
    AGENT_TEMPLATE,
    MODEL_PROVIDER,
    NETWORK_POLICY,
    POD,
    SANDBOX_CLASS,
    Kind,
)
from towline.naming import FIELD_MANAGER, RUN_UID_LABEL

CREDENTIALS_LIFETIME = timedelta(minutes=10)
"""Then Kopf asks again: a projected token is rotated long before it expires."""


@dataclass(frozen=True, kw_only=True)
class Watches:
    cache: Cache
    queue: WorkQueue[Key]
    policies: Policies
    namespaces: Namespaces
    credentials: Configuration
    claim_signals: Callable[[], None]
    """Called when Kopf has taken the signals for itself, to take them back."""

    async def run(self) -> None:
        """Until cancelled, or until Kopf gives up: then raises what it gave up for."""
        kinds, pods, policies = kopf.OperatorRegistry(), kopf.OperatorRegistry(), kopf.OperatorRegistry()
        for registry in (kinds, pods, policies):
            kopf.on.login(registry=registry)(self._login)
        _on(kinds, AGENT_RUN)(self._run)
        for kind in (AGENT_TEMPLATE, MODEL_PROVIDER, SANDBOX_CLASS):
            _on(kinds, kind)(self._reference)
        _on(pods, POD)(self._pod)
        _on(policies, NETWORK_POLICY)(self._policy)
        harness, sandboxes = self.namespaces.harness, self.namespaces.sandboxes
        tasks: list[asyncio.Task[Any]] = []
        try:
            tasks += await _spawn(registry=kinds, settings=_settings(), clusterwide=True)
            tasks += await _spawn(registry=pods, settings=_settings(), namespaces={harness, sandboxes})
            tasks += await _spawn(registry=policies, settings=_settings(), namespaces={sandboxes})
            self.claim_signals()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise RuntimeError("kopf ended without an error")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- handlers: nothing here may fail, wait or return anything ----------------------------------------------------

    async def _run(self, event: kopf.RawEvent, **_: Any) -> None:
        obj: Any = event["object"]
        if event["type"] == "DELETED":
            # Left the selector, or deleted; the body is an old one. Look, unless we know it to have finished.
            if self.cache.lost_sight(key_of(obj)):
                self.queue.add(key_of(obj))
        elif self.cache.put_run(obj, watched=True):
            self.queue.add(key_of(obj))

    async def _pod(self, event: kopf.RawEvent, **_: Any) -> None:
        obj: Any = event["object"]
        key = self.cache.drop_pod(obj) if event["type"] == "DELETED" else self.cache.put_pod(obj, watched=True)
        if key is not None:
            self.queue.add(key)

    async def _reference(self, **_: Any) -> None:
        for key in self.cache.waiting():
            self.queue.add(key)

    async def _policy(self, **_: Any) -> None:
        self.policies.look()

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        found = self.credentials
        header = await found.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            ca_data=found.ca_cert_data,
            insecure=not found.verify_ssl,
            token=header.rpartition(" ")[2] or None,  # a service account's says `bearer`, a kubeconfig's `Bearer`
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            expiration=datetime.now(UTC) + CREDENTIALS_LIFETIME,  # noqa: TID251 - Kopf compares it with its own clock
        )


_IDENTITY: Any = FIELD_MANAGER


def _on(registry: kopf.OperatorRegistry, kind: Kind) -> Any:
    group, _, version = kind.api_version.rpartition("/")
    return kopf.on.event(group, version, kind.plural, registry=registry)


async def _spawn(**options: Any) -> Collection[asyncio.Task[Any]]:
    """Kopf keeps its credentials and settings in context variables: each operator gets a context of its own."""
    # The identity, for a peering that we do not use, would be made from the user's name, and ours has none.
    return await asyncio.create_task(kopf.spawn_tasks(standalone=True, identity=_IDENTITY, **options))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.posting.level = logging.CRITICAL
    settings.scanning.disabled = True
    settings.watching.label_selectors["pods"] = RUN_UID_LABEL
    settings.watching.field_selectors["agentruns"] = UNFINISHED
    settings.watching.chunk_size = 100
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.queueing.idle_timeout = 0.05  # each object of the first list is held for so long
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8)
    settings.networking.request_timeout = 30
    settings.execution.max_workers = 4
    settings.process.ultimate_exiting_timeout = 20
    return settings
