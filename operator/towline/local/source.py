"""The kept run whose history a new one begins with: `spec.continueFrom`, looked up by name.

Called by `cli/run.py` before the order is resolved. On a cluster the operator does the same with its AgentRuns.
"""

from pathlib import Path

from towline.api.agentrun import AgentRun
from towline.errors import Invalid
from towline.events.log import EventLog
from towline.local.here import run_here


async def source_uid(run: AgentRun, namespace: str, store: Path | None) -> str | None:
    """The uid of the latest kept run of that name; None when `run` begins with no other's history.

    `store` is where `run` itself will be kept. Raises Invalid when the source is not there, or not up to there.
    """
    wanted = run.spec.continue_from
    if wanted is None:
        return None
    what = f"AgentRun/{run.metadata.name}: spec.continueFrom"
    if store is None:
        raise Invalid(f"{what} names a kept run, and the new one must be kept beside it: add --keep, or --store DIR")
    try:
        async with run_here(store, wanted.name, verb="run", unkept=False) as source:
            if source.run.namespace != namespace:
                raise Invalid(f"{wanted.name} is in namespace {source.run.namespace}; expected one of {namespace}")
            if wanted.seq is not None and wanted.seq > source.kept.state.head:
                raise Invalid(f"seq is {wanted.seq}; {wanted.name} has {source.kept.state.head} events")
            first = await EventLog(source.store, source.run).first_kept()
            if wanted.seq is not None and first is not None and wanted.seq < first:
                expected = f"expected at least {first}, the first event of {wanted.name} that is kept"
                raise Invalid(f"seq is {wanted.seq}; {expected}")
            return source.run.uid
    except Invalid as fault:
        raise Invalid(f"{what}: {fault}") from None
