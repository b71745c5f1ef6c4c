"""Carries out what the plan says, one action after the other, and folds each answer into what is seen.

Called by `reconcile.py` with a live view. It decides nothing: an action that fails ends the list, and the next look
begins again. The run itself is written here, its pods by `make_pods.py`; what is more than one call of `events`
stands in `tell_store.py`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.controller import tell_store, workspace
from towline.controller.actions import (
    Action,
    AddFinalizer,
    CreateHarness,
    CreateSandbox,
    DeletePod,
    DeleteRun,
    DeleteWorkspace,
    ExpireHistory,
    Finish,
    Grant,
    MarkSandboxDeleted,
    MarkSandboxLost,
    MarkSandboxReady,
    MarkSandboxSuspended,
    RaiseEpoch,
    RegisterHarness,
    RequestCancel,
    Settle,
    StoreSnapshot,
)
from towline.controller.cache import Cache
from towline.controller.make_pods import PodMaker
from towline.controller.ports import Namespaces
from towline.controller.run_objects import run_seen
from towline.controller.seen import Observed
from towline.controller.status import granted, status_of
from towline.errors import StoreUnavailable, TowlineError
from towline.events import pods, runs, sandbox
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.kinds import AGENT_RUN
from towline.naming import FINALIZER, harness_pod_name

log = logging.getLogger(__name__)


class Gone(TowlineError):
    """The run vanished, or is another one by now, while we worked on it: look again."""


@dataclass(frozen=True, slots=True)
class Done:
    """What is seen after the actions, and what stopped them; `deleted` when that was the run's own deletion by us."""

    seen: Observed
    fault: TowlineError | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """With its `pod_maker` the only writer of the controller, but for Events, Leases and policies."""

    kube: Kube
    store: Store
    cache: Cache
    pod_maker: PodMaker
    namespaces: Namespaces
    installation: str
    """Under which the store keeps the index of our runs."""

    async def carry_out(self, actions: Sequence[Action], seen: Observed) -> Done:
        """In order, up to the first fault."""
        for action in actions:
            try:
                after = await self._do(action, seen)
            except TowlineError as fault:
                return Done(seen, fault)
            fields = {"run": f"{seen.run.namespace}/{seen.run.name}", "uid": seen.run.uid, "what": str(action)}
            log.info("action carried out", extra={"fields": fields})
            if after is None:
                return Done(seen, deleted=True)
            seen = after
        return Done(seen)

    async def write_status(self, seen: Observed, status: dict[str, Any]) -> Observed:
        """Writes the whole status, on condition that the run has not changed. Raises Conflict, Gone, Refused."""
        run = seen.run
        obj = {
            "apiVersion": AGENT_RUN.api_version,
            "kind": AGENT_RUN.name,
            "metadata": {
                "namespace": run.namespace,
                "name": run.name,
                "uid": run.uid,
                "resourceVersion": run.resource_version,
            },
            "status": status,
        }
        return self._taken_in(seen, await self.kube.apply_status(obj))

    async def tell_log(self, seen: Observed, news: tuple[str, str] | None) -> None:
        """After the actions: see `tell_store.tell_log`."""
        await tell_store.tell_log(self.store, seen, news)

    async def _do(self, action: Action, seen: Observed) -> Observed | None:
        """What is seen then; None when that is nothing any more, as the run is deleted."""
        store, ref, now = self.store, seen.run.ref, seen.now
        epoch = tell_store.epoch_in_force(seen)
        match action:
            case AddFinalizer():
                failpoints.hit("operator.finalizer.before")
                seen = await self._patch(seen, {"finalizers": [*seen.run.finalizers, FINALIZER]})
                failpoints.hit("operator.finalizer.after")
                return seen
            case StoreSnapshot():
                return await tell_store.store_snapshot(store, self.installation, seen)
            case Grant(granted_epoch, ended, crashed):
                status = granted(seen, granted_epoch, ended, crashed)
                new = replace(seen, run=replace(seen.run, status=status))
                failpoints.hit("operator.grant.before")
                seen = await self.write_status(new, status_of(new))
                failpoints.hit("operator.grant.after")
                return seen
            case RaiseEpoch(raised, lost):
                await tell_store.raise_epoch(store, seen, raised, lost)
            case CreateHarness(granted_epoch):
                return await self.pod_maker.create_harness(seen, await self._snapshot(seen), granted_epoch)
            case RegisterHarness(granted_epoch):
                await pods.register_harness(store, harness_pod_name(ref.uid, granted_epoch), ref, granted_epoch)
            case DeletePod():
                return await self.pod_maker.delete(seen, action)
            case RequestCancel(reason):
                failpoints.hit("operator.cancel.before")
                await runs.request_cancel(store, ref, reason)
            case Finish():
                await tell_store.finish(store, seen, action)
            case CreateSandbox(generation):
                return await self.pod_maker.create_sandbox(seen, await self._snapshot(seen), generation)
            case MarkSandboxReady(name, generation, address, milliseconds):
                record = SandboxRecord(name, "Ready", address, _provider(seen), generation=generation)
                failpoints.hit("operator.ready.before")
                await sandbox.mark_ready(store, ref, epoch, record, ms=milliseconds, start="cold", now=now)
                failpoints.hit("operator.ready.after")
            case MarkSandboxLost(name, generation, state, reason, message):
                failpoints.hit("operator.lost.before")
                await sandbox.mark_lost(
                    *(store, ref, epoch, name, reason, message), now=now, state=state, generation=generation
                )
            case MarkSandboxDeleted(name):
                if seen.store is not None and seen.store.state.closed is not None:
                    await tell_store.tell_sandbox_deleted(store, seen, name)
                await sandbox.mark_deleted(store, ref, epoch, name, now=now)
            case MarkSandboxSuspended(name):
                await sandbox.mark_suspended(store, ref, epoch, name, now=now)
            case DeleteWorkspace():
                await workspace.delete(self.kube, self.namespaces.sandboxes, ref.uid)
            case ExpireHistory():
                await tell_store.expire(store, self.installation, seen)
            case Settle(annotations):
                return await self._settle(seen, dict(annotations))
            case DeleteRun():
                left = await self.kube.delete(AGENT_RUN, ref.namespace, ref.name, uid=ref.uid)
                await tell_store.expire(store, self.installation, seen)
                marked = left is not None and left["kind"] == AGENT_RUN.name  # a finalizer holds it
                return self._taken_in(seen, left) if marked else None
            case _:
                assert_never(action)
        return seen

    async def _patch(self, seen: Observed, metadata: dict[str, Any]) -> Observed:
        run = seen.run
        metadata |= {"uid": run.uid, "resourceVersion": run.resource_version}
        return self._taken_in(seen, await self.kube.patch_metadata(AGENT_RUN, run.namespace, run.name, metadata))

    async def _settle(self, seen: Observed, annotations: dict[str, str | None]) -> Observed:
        left = [each for each in seen.run.finalizers if each != FINALIZER]
        try:
            await pods.forget_harness(self.store, harness_pod_name(seen.run.uid, seen.run.epoch))
        except StoreUnavailable:
            pass  # no finalizer waits for the store; the pod is gone, so its entry opens nothing
        failpoints.hit("operator.settle.before")
        seen = await self._patch(seen, {"finalizers": left, "annotations": annotations})
        failpoints.hit("operator.settle.after")
        return seen

    def _taken_in(self, seen: Observed, obj: Object | None) -> Observed:
        if obj is None or obj["metadata"]["uid"] != seen.run.uid:
            raise Gone(f"AgentRun {seen.run.namespace}/{seen.run.name} is gone")
        self.cache.put_run(obj)
        return replace(seen, run=run_seen(obj))

    async def _snapshot(self, seen: Observed) -> Snapshot:
        if seen.proposal is not None:
            return seen.proposal
        spec = await runs.load_spec(self.store, seen.run.ref)
        if spec is None:
            raise Gone(f"the store has no snapshot of {seen.run.namespace}/{seen.run.name}")
        return Snapshot.from_json(spec)


def _provider(seen: Observed) -> str:
    return seen.facts.sandbox_provider if seen.facts is not None else ""


def wrote_to_store(actions: Sequence[Action]) -> bool:
    """Whether the store is to be read again after these."""
    return any(
        isinstance(
            action,
            StoreSnapshot
            | RaiseEpoch
            | RegisterHarness
            | RequestCancel
            | Finish
            | MarkSandboxReady
            | MarkSandboxLost
            | MarkSandboxDeleted
            | MarkSandboxSuspended,
        )
        for action in actions
    )
