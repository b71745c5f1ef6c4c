"""Carries out what the plan says, one action after the other, and folds each answer into what is seen.

Called by `reconcile.py` with a live view. It decides nothing: an action that fails ends the list, and the next look
begins again. What the API server refuses to make is a trouble to show, not an error.
"""

import hashlib
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.controller import workspace
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
    RequestCancel,
    Settle,
    StoreSnapshot,
)
from towline.controller.cache import Cache, ours
from towline.controller.observe import facts_of
from towline.controller.pods import pod_seen
from towline.controller.ports import Manifests, Namespaces
from towline.controller.references import Missing, secret_of
from towline.controller.run_objects import run_seen
from towline.controller.seen import Observed, PodSeen
from towline.controller.status import granted, status_of
from towline.errors import Fenced, LogClosed, StoreUnavailable, TowlineError
from towline.events import index, pods, runs, sandbox
from towline.events.event import Draft, RunRef, draft
from towline.events.feed import feed_afterwards, feed_rest
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.errors import AlreadyExists, Conflict, Refused
from towline.kube.kinds import AGENT_RUN, POD
from towline.kube.pod_status import Ended, Trouble
from towline.naming import FINALIZER, harness_pod_name, sandbox_name

log = logging.getLogger(__name__)

HISTORY_SECONDS = 3600
"""How long the history of a deleted run can still be read, by whoever was reading it."""


class Gone(TowlineError):
    """The run vanished, or is another one by now, while we worked on it: look again."""


@dataclass(frozen=True, slots=True)
class Done:
    """What is seen after the actions, and what stopped them."""

    seen: Observed
    fault: TowlineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """The only writer of the controller, but for Events, Leases and policies."""

    kube: Kube
    store: Store
    cache: Cache
    manifests: Manifests
    namespaces: Namespaces
    installation: str
    """Under which the store keeps the index of our runs."""

    async def carry_out(self, actions: Sequence[Action], seen: Observed) -> Done:
        """In order, up to the first fault."""
        for action in actions:
            try:
                seen = await self._do(action, seen)
            except TowlineError as fault:
                return Done(seen, fault)
            fields = {"run": f"{seen.run.namespace}/{seen.run.name}", "uid": seen.run.uid, "what": str(action)}
            log.info("action carried out", extra={"fields": fields})
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

    async def _do(self, action: Action, seen: Observed) -> Observed:
        store, ref, now = self.store, seen.run.ref, seen.now
        epoch = self._epoch(seen)
        match action:
            case AddFinalizer():
                failpoints.hit("operator.finalizer.before")
                seen = await self._patch(seen, {"finalizers": [*seen.run.finalizers, FINALIZER]})
                failpoints.hit("operator.finalizer.after")
                return seen
            case StoreSnapshot():
                return await self._store_snapshot(seen)
            case Grant(granted_epoch, ended, crashed):
                status = granted(seen.run, granted_epoch, ended, crashed, _progress(seen), now)
                new = replace(seen, run=replace(seen.run, status=status))
                failpoints.hit("operator.grant.before")
                seen = await self.write_status(new, status_of(new))
                failpoints.hit("operator.grant.after")
                return seen
            case RaiseEpoch(raised, lost):
                await self._raise(seen, raised, lost)
            case CreateHarness(granted_epoch):
                return await self._create_harness(seen, granted_epoch)
            case DeletePod():
                return await self._delete_pod(seen, action)
            case RequestCancel(reason):
                failpoints.hit("operator.cancel.before")
                await runs.request_cancel(store, ref, reason)
            case Finish():
                await self._finish(seen, action)
            case CreateSandbox(generation):
                return await self._create_sandbox(seen, generation)
            case MarkSandboxReady(name, generation, address, milliseconds):
                record = SandboxRecord(name, "Ready", address, self._provider(seen), generation=generation)
                failpoints.hit("operator.ready.before")
                await sandbox.mark_ready(store, ref, epoch, record, ms=milliseconds, start="cold", now=now)
                failpoints.hit("operator.ready.after")
            case MarkSandboxLost(name, state, reason, message):
                failpoints.hit("operator.lost.before")
                await sandbox.mark_lost(store, ref, epoch, name, reason, message, now=now, state=state)
            case MarkSandboxDeleted(name):
                if seen.store is not None and seen.store.state.closed is not None:
                    await self._tell_deleted(seen, name)
                await sandbox.mark_deleted(store, ref, epoch, name, now=now)
            case MarkSandboxSuspended(name):
                await sandbox.mark_suspended(store, ref, epoch, name, now=now)
            case DeleteWorkspace():
                await workspace.delete(self.kube, self.namespaces.sandboxes, ref.uid)
            case ExpireHistory():
                await self._expire(seen)
            case Settle(annotations):
                return await self._settle(seen, dict(annotations))
            case DeleteRun():
                left = await self.kube.delete(AGENT_RUN, ref.namespace, ref.name, uid=ref.uid)
                await self._expire(seen)
                return self._taken_in(seen, left if left is not None and left["kind"] == AGENT_RUN.name else None)
            case _:
                assert_never(action)
        return seen

    # -- the run -----------------------------------------------------------------------------------------------------

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

    # -- the store ---------------------------------------------------------------------------------------------------

    async def _store_snapshot(self, seen: Observed) -> Observed:
        assert seen.proposal is not None, "planned with a proposal only"
        spec = seen.proposal.to_json()
        await index.add(self.store, self.installation, seen.run.ref)
        failpoints.hit("operator.snapshot.before")
        await runs.create(self.store, seen.run.ref, spec, now=seen.now)
        failpoints.hit("operator.snapshot.after")
        stored = await runs.load_spec(self.store, seen.run.ref) or spec
        return replace(seen, facts=facts_of(stored), proposal=Snapshot.from_json(stored))

    async def _raise(self, seen: Observed, epoch: int, lost: Ended | None) -> None:
        """Fences what was before; what was lost is told once, whichever operator comes to it."""
        drafts: list[Draft] = []
        if lost is not None:
            data = {"epoch": epoch - 1, "reason": lost.reason, "exit_code": lost.exit_code, "signal": lost.signal}
            drafts.append(draft("harness.lost", data, now=seen.now))
        if epoch > 1:
            failpoints.hit("operator.raise.before")
            await runs.append_once(self.store, seen.run.ref, epoch, drafts, guard=f"epoch:{epoch}")
            failpoints.hit("operator.raise.after")
            await pods.forget_harness(self.store, harness_pod_name(seen.run.uid, epoch - 1))

    async def _expire(self, seen: Observed) -> None:
        run = seen.run.ref
        failpoints.hit("operator.expire.before")
        await self._to_feed(run, feed_rest(self.store, run))
        await runs.expire(self.store, run, HISTORY_SECONDS)
        await index.remove(self.store, self.installation, run)
        await pods.forget_harness(self.store, harness_pod_name(run.uid, seen.run.epoch))

    async def _finish(self, seen: Observed, action: Finish) -> None:
        if action.kind == "Cancelled":
            terminal = draft("run.cancelled", {"reason": action.reason}, now=seen.now)
        else:
            terminal = draft("run.failed", {"reason": action.reason, "message": action.message}, now=seen.now)
        failpoints.hit("operator.finish.before")
        try:
            await runs.finish(self.store, seen.run.ref, action.epoch, terminal)
            failpoints.hit("operator.finish.after")
        except LogClosed:
            pass  # a recorded outcome beats ours

    async def _tell_deleted(self, seen: Observed, name: str) -> None:
        """After the end of the run only the feed hears of it; told before it is noted, so at least once."""
        event_id = "ev_" + hashlib.sha256(f"{seen.run.uid} deleted {name}".encode()).hexdigest()[:20]
        what = draft("sandbox.deleted", {"name": name}, now=seen.now, event_id=event_id)
        await self._to_feed(seen.run.ref, feed_afterwards(self.store, seen.run.ref, self._epoch(seen), what))

    async def _to_feed(self, run: RunRef, copying: Awaitable[None]) -> None:
        """No run waits for its namespace's feed: one that takes nothing is told, and tried again at the next look."""
        try:
            await copying
        except StoreUnavailable:
            raise
        except TowlineError as fault:
            fields = {"run": f"{run.namespace}/{run.name}", "cause": str(fault)}
            log.warning("feed not written", extra={"fields": fields})

    async def tell_log(self, seen: Observed, news: tuple[str, str] | None) -> None:
        """`news` is a phase that the log has not been told, and its reason; then the feed gets what it has not yet."""
        ref, now = seen.run.ref, seen.now
        if news is not None:
            failpoints.hit("operator.phase.before")
            try:
                await runs.tell_phase(self.store, ref, self._epoch(seen), *news, now=now)
            except Fenced:
                return  # an operator that granted more has told, or will
            failpoints.hit("operator.phase.after")
        await self._to_feed(ref, feed_rest(self.store, ref))

    # -- pods --------------------------------------------------------------------------------------------------------

    async def _create_harness(self, seen: Observed, epoch: int) -> Observed:
        run = seen.run.ref
        snapshot = await self._snapshot(seen)
        try:
            secret = await secret_of(self.kube, snapshot.model.provider)
        except Missing as missing:
            return replace(seen, harness_trouble=missing.trouble)
        pod = self.manifests.harness_pod(run, snapshot, epoch, secret)
        await pods.register_harness(self.store, pod["metadata"]["name"], run, epoch)
        failpoints.hit("operator.harness.before")
        made = await self._create(seen, pod)
        failpoints.hit("operator.harness.after")
        if isinstance(made, Trouble):
            return replace(seen, harness_trouble=made)
        return replace(seen, harnesses=(*(each for each in seen.harnesses if each.name != made.name), made))

    async def _create_sandbox(self, seen: Observed, generation: int) -> Observed:
        snapshot = await self._snapshot(seen)
        claim = self.manifests.workspace_claim(seen.run.ref, snapshot)
        if claim is not None and (trouble := await workspace.ensure(self.kube, claim, seen.run.uid)) is not None:
            return replace(seen, sandbox_trouble=trouble)
        pod = self.manifests.sandbox_pod(seen.run.ref, snapshot, generation)
        assert pod["metadata"]["name"] == sandbox_name(seen.run.uid, generation), "a sandbox is named by its generation"
        failpoints.hit("operator.sandbox.before")
        made = await self._create(seen, pod)
        failpoints.hit("operator.sandbox.after")
        if isinstance(made, Trouble):
            return replace(seen, sandbox_trouble=made)
        return replace(seen, sandboxes=(*(each for each in seen.sandboxes if each.name != made.name), made))

    async def _create(self, seen: Observed, pod: Object) -> PodSeen | Trouble:
        """The pod as it is now; one that exists already is ours if it bears the run's UID, and otherwise left alone."""
        metadata = pod["metadata"]
        try:
            obj: Object | None = await self.kube.create(pod)
        except AlreadyExists:
            obj = await self.kube.get(POD, metadata["namespace"], metadata["name"])
            if obj is None:
                raise Conflict(f"Pod {metadata['namespace']}/{metadata['name']} comes and goes") from None
            if pod_seen(obj).run_uid != seen.run.uid or not ours(pod_seen(obj)):
                return Trouble("NameTaken", f"Pod {metadata['namespace']}/{metadata['name']} is not ours")
        except Refused as refusal:
            return Trouble("QuotaExceeded" if refusal.quota else "PodRefused", refusal.message)
        assert obj is not None, "made or found"
        self.cache.put_pod(obj)
        return pod_seen(obj)

    async def _delete_pod(self, seen: Observed, action: DeletePod) -> Observed:
        namespace = self.namespaces.harness if action.harness else self.namespaces.sandboxes
        failpoints.hit("operator.delete.before")
        try:
            left = await self.kube.delete(
                POD, namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds
            )
        except Conflict:
            return seen  # another pod of that name: not ours to delete
        failpoints.hit("operator.delete.after")
        gone = next(pod for pod in (*seen.harnesses, *seen.sandboxes) if pod.uid == action.uid)
        if left is not None and left.get("kind") == "Pod" and not _removed(left):
            self.cache.put_pod(left)
            return _with_pod(seen, gone, pod_seen(left))
        self.cache.forget_pod(gone)
        return _with_pod(seen, gone, None)

    async def _snapshot(self, seen: Observed) -> Snapshot:
        if seen.proposal is not None:
            return seen.proposal
        spec = await runs.load_spec(self.store, seen.run.ref)
        if spec is None:
            raise Gone(f"the store has no snapshot of {seen.run.namespace}/{seen.run.name}")
        return Snapshot.from_json(spec)

    def _epoch(self, seen: Observed) -> int:
        """Under which the operator writes: the one in force."""
        return max(seen.run.epoch, seen.store.state.epoch if seen.store is not None else 0)

    def _provider(self, seen: Observed) -> str:
        return seen.facts.sandbox_provider if seen.facts is not None else ""


def _progress(seen: Observed) -> int:
    return seen.store.state.progress if seen.store is not None else 0


def _removed(pod: Object) -> bool:
    """Whether a deleted pod went at once: without grace, and with nobody's finalizer."""
    return pod["metadata"].get("deletionGracePeriodSeconds") == 0 and not pod["metadata"].get("finalizers")


def _with_pod(seen: Observed, old: PodSeen, new: PodSeen | None) -> Observed:
    def changed(pods: tuple[PodSeen, ...]) -> tuple[PodSeen, ...]:
        return tuple(pod if pod.uid != old.uid else new for pod in pods if pod.uid != old.uid or new is not None)  # type: ignore[misc]

    return replace(seen, harnesses=changed(seen.harnesses), sandboxes=changed(seen.sandboxes))


def wrote_to_store(actions: Sequence[Action]) -> bool:
    """Whether the store is to be read again after these."""
    return any(
        isinstance(
            action,
            StoreSnapshot
            | RaiseEpoch
            | RequestCancel
            | Finish
            | MarkSandboxReady
            | MarkSandboxLost
            | MarkSandboxDeleted
            | MarkSandboxSuspended,
        )
        for action in actions
    )
