"""What the chart has to do around an installation, as Jobs: `python -m towline.controller.chart_hooks crds | cleanup`.

`crds` brings the kinds to this version, which Helm does not do after the first installation. `cleanup` ends and deletes
every run before the operator goes: a finalizer that nobody takes off would hold runs and namespaces for ever. Both may
be repeated. Started by Helm, never by the operator.
"""

if __name__ == "__main__":
    from towline.seal import seal_process

    seal_process()  # before every other import

import asyncio
import logging
import sys
from collections.abc import Sequence

from towline import logs
from towline.api import crds
from towline.errors import Invalid, TowlineError
from towline.kube import login
from towline.kube.client import Kube, Object
from towline.kube.errors import Conflict, Refused
from towline.kube.kinds import AGENT_RUN, POD
from towline.naming import FINALIZER, RUN_UID_LABEL
from towline.settings import HookSettings, read

log = logging.getLogger("towline.hooks")

FIELD_MANAGER = "towline-chart"
PATIENCE_SECONDS = 60.0
"""How long the operator has to end the runs in good order; it is told by their deletion."""
GIVE_UP_SECONDS = 30.0
"""How long after that somebody else's finalizer is waited for: it does not concern us."""
POLL_SECONDS = 1.0


async def apply_crds(kube: Kube) -> None:
    """Server-side, so that what an older version said and this one does not goes away."""
    for kind in crds.KINDS:
        definition = crds.definition(kind)
        await kube.apply(definition)
        log.info("kind applied", extra={"fields": {"name": definition["metadata"]["name"]}})


async def clean_up(
    kube: Kube,
    namespaces: Sequence[str],
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    give_up_seconds: float = GIVE_UP_SECONDS,
) -> None:
    """Deletes all runs and waits for the operator to finish them; then does without it what is left."""
    for run in await _runs(kube):
        await kube.delete(AGENT_RUN, run["metadata"]["namespace"], run["metadata"]["name"])
    clock, alone = asyncio.get_running_loop().time, 0
    deadline = clock() + patience_seconds
    while True:
        left = await _runs(kube)
        if not left or clock() > deadline + give_up_seconds:
            break
        if clock() > deadline:
            for run in left:
                alone += await _let_go(kube, run)
        await asyncio.sleep(POLL_SECONDS)
    for namespace in namespaces:
        for pod in await kube.list(POD, namespace, labels=RUN_UID_LABEL, metadata_only=True):
            await kube.delete(POD, namespace, pod["metadata"]["name"])
    fields = {"without_the_operator": alone, "held_by_others": len(left)}
    log.info("runs removed", extra={"fields": fields})


async def _runs(kube: Kube) -> list[Object]:
    """None where the kind is not installed (any more)."""
    try:
        return await kube.list(AGENT_RUN, metadata_only=True)
    except Refused as refusal:
        if refusal.status == 404:
            return []
        raise


async def _let_go(kube: Kube, run: Object) -> bool:
    """Takes our finalizer off, unless the run changes this moment. Others' stay: they are theirs to take."""
    metadata = run["metadata"]
    finalizers = metadata.get("finalizers") or []
    if FINALIZER not in finalizers:
        return False
    kept = [each for each in finalizers if each != FINALIZER]
    change = {"finalizers": kept, "resourceVersion": metadata["resourceVersion"]}
    try:
        await kube.patch_metadata(AGENT_RUN, metadata["namespace"], metadata["name"], change)
    except Conflict:
        return False
    return True


async def _run(verb: str, settings: HookSettings) -> None:
    kube = Kube(login.client(await login.configuration(settings.kubeconfig)), field_manager=FIELD_MANAGER)
    try:
        if verb == "crds":
            await apply_crds(kube)
        else:
            await clean_up(kube, (settings.harness_namespace, settings.sandbox_namespace))
    finally:
        await kube.aclose()


def main(words: Sequence[str]) -> int:
    """Do what the one word says; 1 when that failed, so that the Job tries again."""
    logs.configure("info", role="hook")
    if list(words) not in (["crds"], ["cleanup"]):
        log.error("expected one word: crds or cleanup")
        return 2
    try:
        asyncio.run(_run(words[0], read(HookSettings)))
    except (Invalid, TowlineError) as fault:
        log.error("hook failed", extra={"fields": {"verb": words[0], "cause": str(fault)}})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
