"""What the operator writes to the event store for a run: its beginning, its epochs and phases, its end, its feed.

Called by `carry_out.py`; each may be repeated. It decides nothing, and asks the API server for nothing. What is one
call of `events` (the marks of a sandbox, a cancellation) its caller does itself.
"""

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.controller.actions import Finish
from towline.controller.observe import facts_of
from towline.controller.seen import Observed
from towline.errors import Fenced, LogClosed, StoreUnavailable, TowlineError
from towline.events import index, pods, runs
from towline.events.event import Draft, RunRef, draft, lasting_id
from towline.events.feed import feed_afterwards, feed_rest
from towline.events.store import Store
from towline.kube.pod_status import Ended
from towline.naming import harness_pod_name

log = logging.getLogger(__name__)

HISTORY_SECONDS = 3600
"""How long the history of a deleted run can still be read, by whoever was reading it."""


async def store_snapshot(store: Store, installation: str, seen: Observed) -> Observed:
    """The snapshot that counts, which is the first one stored; and the run is in the index of `installation`."""
    assert seen.proposal is not None, "planned with a proposal only"
    spec = seen.proposal.to_json()
    await index.add(store, installation, seen.run.ref)
    failpoints.hit("operator.snapshot.before")
    await runs.create(store, seen.run.ref, spec, now=seen.now)
    failpoints.hit("operator.snapshot.after")
    stored = await runs.load_spec(store, seen.run.ref) or spec
    return replace(seen, facts=facts_of(stored), proposal=Snapshot.from_json(stored))


async def raise_epoch(store: Store, seen: Observed, epoch: int, lost: Ended | None) -> None:
    """Fences what was before; what was lost is told once, whichever operator comes to it."""
    drafts: list[Draft] = []
    if lost is not None:
        data = {"epoch": epoch - 1, "reason": lost.reason, "exit_code": lost.exit_code, "signal": lost.signal}
        drafts.append(draft("harness.lost", data, now=seen.now))
    if epoch > 1:
        failpoints.hit("operator.raise.before")
        await runs.append_once(store, seen.run.ref, epoch, drafts, guard=f"epoch:{epoch}")
        failpoints.hit("operator.raise.after")
        await pods.forget_harness(store, harness_pod_name(seen.run.uid, epoch - 1))


async def finish(store: Store, seen: Observed, action: Finish) -> None:
    """The terminal event, unless the run has one."""
    terminal = _terminal(action, seen)
    failpoints.hit("operator.finish.before")
    try:
        await runs.finish(store, seen.run.ref, action.epoch, terminal)
        failpoints.hit("operator.finish.after")
    except LogClosed:
        pass  # a recorded outcome beats ours


def _terminal(action: Finish, seen: Observed) -> Draft:
    match action.kind:
        case "Cancelled":
            return draft("run.cancelled", {"reason": action.reason}, now=seen.now)
        case "Failed":
            return draft("run.failed", {"reason": action.reason, "message": action.message}, now=seen.now)
        case "Succeeded":
            return draft("run.completed", _completed(seen.run.status, action.result), now=seen.now)


def _completed(status: Mapping[str, Any], result: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the status has kept of what the harness wrote."""
    usage = status.get("usage") or {}
    return {
        "result": dict(result or {"text": "", "truncated": True, "sha256": ""}),
        "usage": {
            "input_tokens": usage.get("inputTokens", 0),
            "output_tokens": usage.get("outputTokens", 0),
            "cached_input_tokens": usage.get("cachedInputTokens", 0),
        },
        "cost_micro_usd": usage.get("costMicroUSD", 0),
        "turns": status.get("turns", 0),
        "tool_calls": status.get("toolCalls", 0),
    }


async def expire(store: Store, installation: str, seen: Observed) -> None:
    """The history goes in `HISTORY_SECONDS`, once the feed has what it had not yet."""
    run = seen.run.ref
    failpoints.hit("operator.expire.before")
    await _to_feed(run, feed_rest(store, run))
    await runs.expire(store, run, HISTORY_SECONDS)
    await index.remove(store, installation, run)
    await pods.forget_harness(store, harness_pod_name(run.uid, seen.run.epoch))


async def tell_sandbox_deleted(store: Store, seen: Observed, name: str) -> None:
    """After the end of the run only the feed hears of it; told before it is noted, so at least once."""
    event_id = lasting_id(seen.run.ref, f"deleted {name}")
    what = draft("sandbox.deleted", {"name": name}, now=seen.now, event_id=event_id)
    await _to_feed(seen.run.ref, feed_afterwards(store, seen.run.ref, epoch_in_force(seen), what))


async def tell_log(store: Store, seen: Observed, news: tuple[str, str] | None) -> None:
    """`news` is a phase that the log has not been told, and its reason; then the feed gets what it has not yet."""
    ref, now = seen.run.ref, seen.now
    if news is not None:
        failpoints.hit("operator.phase.before")
        try:
            await runs.tell_phase(store, ref, epoch_in_force(seen), *news, now=now)
        except Fenced:
            return  # an operator that granted more has told, or will
        failpoints.hit("operator.phase.after")
    await _to_feed(ref, feed_rest(store, ref))


def epoch_in_force(seen: Observed) -> int:
    """Under which the operator writes."""
    return max(seen.run.epoch, seen.store.state.epoch if seen.store is not None else 0)


async def _to_feed(run: RunRef, copying: Awaitable[None]) -> None:
    """No run waits for its namespace's feed: one that takes nothing is told, and tried again at the next look."""
    try:
        await copying
    except StoreUnavailable:
        raise
    except TowlineError as fault:
        fields = {"run": f"{run.namespace}/{run.name}", "cause": str(fault)}
        log.warning("feed not written", extra={"fields": fields})
