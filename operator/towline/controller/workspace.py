"""The claims that keep workspaces: one for a run whose class has a volume and that retains its sandbox by Suspend.

Called by `make_pods.py` before a sandbox, by `carry_out.py` at the end of a run, and by the reaper for runs that are
gone. The API server lets a claim go only when no pod mounts it any more, so nobody here waits for that.
"""

import logging
from collections.abc import AsyncIterator

from towline import failpoints
from towline.kube.client import Kube, Object
from towline.kube.errors import AlreadyExists, Conflict, Refused
from towline.kube.kinds import CLAIM
from towline.kube.pod_status import Trouble
from towline.naming import RUN_NAMESPACE_LABEL, RUN_UID_LABEL, workspace_claim_name

log = logging.getLogger(__name__)


async def ensure(kube: Kube, claim: Object, run_uid: str) -> Trouble | None:
    """The claim exists and is the run's, or why it is not to be had. Raises Conflict while a former one is going."""
    metadata = claim["metadata"]
    try:
        await kube.create(claim)
    except AlreadyExists:
        found = await kube.get(CLAIM, metadata["namespace"], metadata["name"])
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise Conflict(f"PersistentVolumeClaim {metadata['namespace']}/{metadata['name']} is going") from None
        if _run_of(found) != run_uid:
            return Trouble("NameTaken", f"PersistentVolumeClaim {metadata['namespace']}/{metadata['name']} is not ours")
    except Refused as refusal:
        return Trouble("QuotaExceeded" if refusal.quota else "PodRefused", refusal.message)
    return None


async def delete(kube: Kube, namespace: str, run_uid: str) -> None:
    """The run's claim, if there is one. An installation without the right to claims has none of ours."""
    name = workspace_claim_name(run_uid)
    try:
        found = await kube.get(CLAIM, namespace, name, metadata_only=True)
        if found is None or _run_of(found) != run_uid or found["metadata"].get("deletionTimestamp"):
            return
        failpoints.hit("operator.workspace.before")
        await kube.delete(CLAIM, namespace, name, uid=found["metadata"]["uid"])
    except (Conflict, Refused) as fault:
        log.warning("workspace not deleted", extra={"fields": {"claim": f"{namespace}/{name}", "cause": str(fault)}})


async def owners(kube: Kube, namespace: str) -> AsyncIterator[tuple[str, str]]:
    """Namespace and UID of the run of each claim of ours."""
    try:
        async for page in kube.pages(CLAIM, namespace, labels=RUN_UID_LABEL, metadata_only=True):
            for claim in page:
                labels, uid = claim["metadata"]["labels"], _run_of(claim)
                if claim["metadata"]["name"] == workspace_claim_name(uid):
                    yield labels.get(RUN_NAMESPACE_LABEL, ""), uid
    except Refused:
        return


def _run_of(claim: Object) -> str:
    return str((claim["metadata"].get("labels") or {}).get(RUN_UID_LABEL, ""))
