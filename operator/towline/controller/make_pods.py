"""Makes the pods of a run and deletes them; the answer goes into the cache and into what is seen.

Called by `carry_out.py` with a live view. It decides neither whether nor when, and deletes nothing but by its UID. What
the API server refuses to make is a trouble to show, not an error. Pods of runs that are gone are the reaper's.
"""

from dataclasses import dataclass, replace

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.controller import workspace
from towline.controller.actions import DeletePod
from towline.controller.cache import Cache, ours
from towline.controller.pods import pod_seen
from towline.controller.ports import Manifests, Namespaces
from towline.controller.references import Missing, secret_of
from towline.controller.seen import Observed, PodSeen
from towline.events import pods
from towline.events.store import Store
from towline.kube.client import Kube, Object
from towline.kube.errors import AlreadyExists, Conflict, Refused
from towline.kube.kinds import POD
from towline.kube.pod_status import Trouble
from towline.naming import sandbox_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMaker:
    """Each call may be repeated: a pod that is there already, or gone already, is no fault."""

    kube: Kube
    store: Store
    """Is told of a harness before there is one."""
    cache: Cache
    manifests: Manifests
    namespaces: Namespaces

    async def create_harness(self, seen: Observed, snapshot: Snapshot, epoch: int) -> Observed:
        """Raises Conflict when it is to be tried again."""
        run = seen.run.ref
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

    async def create_sandbox(self, seen: Observed, snapshot: Snapshot, generation: int) -> Observed:
        """With the claim that keeps its workspace, where one does. Raises Conflict when it is to be tried again."""
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

    async def delete(self, seen: Observed, action: DeletePod) -> Observed:
        """The pod is seen to be going, or to be gone."""
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


def _removed(pod: Object) -> bool:
    """Whether a deleted pod went at once: without grace, and with nobody's finalizer."""
    return pod["metadata"].get("deletionGracePeriodSeconds") == 0 and not pod["metadata"].get("finalizers")


def _with_pod(seen: Observed, old: PodSeen, new: PodSeen | None) -> Observed:
    def changed(pods: tuple[PodSeen, ...]) -> tuple[PodSeen, ...]:
        return tuple(pod if pod.uid != old.uid else new for pod in pods if pod.uid != old.uid or new is not None)  # type: ignore[misc]

    return replace(seen, harnesses=changed(seen.harnesses), sandboxes=changed(seen.sandboxes))
