"""One harness process: wires the loop to the store, the gateway and the model, and turns its end into an exit code.

Called by `__main__.py` after the seal. What it knows of the run it reads from the store; what it writes is fenced by
its epoch. Any end but a terminal event leaves the run to the next process, which resumes from the log.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack

import aiohttp

from towline import __version__, failpoints
from towline.clock import utc_now
from towline.errors import Fenced, LogClosed, RunCancelled, StoreUnavailable, TowlineError
from towline.events.event import Draft, RunRef, draft
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store
from towline.events.totals import NOTHING, Totals
from towline.exit_codes import HarnessExit
from towline.harness.consumed import OWN_PROMPT_ID
from towline.harness.journal import Fact, Journal
from towline.harness.loop import Ending, run_turns
from towline.harness.models.build import model_for
from towline.harness.ports import GatewayRefused, GatewayUnavailable, Ports
from towline.harness.reading import Found, SourceGone, check, read, taken_over
from towline.harness.store_ports import LogSink, StoreInbox, SystemClock
from towline.harness.tools import Gateway
from towline.seal import Seal
from towline.settings import HarnessSettings

log = logging.getLogger(__name__)

STORE_PATIENCE_SECONDS = 15.0
"""For a store that is away at the start: a failover or the restart of a pod, no more."""

WATCH_SECONDS = 5.0
"""A lost notice of a cancellation, or of a successor, is noticed after this long."""


async def run(settings: HarnessSettings, sealed: Seal) -> HarnessExit:
    """Work on the run until it ends, rests, is taken away or cancelled; the exit code that says which."""
    work = asyncio.ensure_future(_work(settings, sealed))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        log.warning("harness stopped")
        return HarnessExit.STOPPED
    except RunCancelled as stop:
        log.warning("run cancelled", extra={"fields": {"reason": stop.reason}})
        return HarnessExit.STOPPED
    except LogClosed as stop:
        log.warning("log found closed", extra={"fields": {"cause": str(stop)}})
        return HarnessExit.FINISHED
    except Fenced as stop:
        log.error("harness fenced", extra={"fields": {"cause": str(stop)}})
        return HarnessExit.FENCED
    except StoreUnavailable as fault:
        log.error("store unreachable", extra={"fields": {"cause": str(fault)}})
        return HarnessExit.STORE_AWAY
    except GatewayUnavailable as fault:
        log.error("gateway unreachable", extra={"fields": {"cause": str(fault)}})
        return HarnessExit.GATEWAY_AWAY
    except TowlineError as fault:
        log.error("harness gave up", extra={"fields": {"kind": type(fault).__name__, "cause": str(fault)}})
        return HarnessExit.CRASHED


async def _work(settings: HarnessSettings, sealed: Seal) -> HarnessExit:
    ref = RunRef(settings.namespace, settings.uid)
    async with AsyncExitStack() as closing:
        store = Store.connect(settings.redis_url, patience_seconds=STORE_PATIENCE_SECONDS)
        closing.push_async_callback(store.aclose)
        event_log = EventLog(store, ref)
        found = await read(store, event_log, settings.epoch)
        snapshot, history = found.snapshot, found.history
        sink = LogSink(store, ref, settings.epoch, found.state.compacted)
        notices = Notices(store)
        closing.push_async_callback(notices.aclose)
        letters = StoreInbox(store, ref, await closing.enter_async_context(notices.watch(ref)))
        failpoints.hit("harness.read.after")
        await sink.append(_arrival(settings, sealed, found), await _recount(found, letters))
        failpoints.hit("harness.arrival.after")
        session = await closing.enter_async_context(open_session())
        gateway = Gateway(session, settings.gateway_url, settings.gateway_token_file, sink)
        model = model_for(snapshot.model, session, settings.model_key_file)
        ports = Ports(model, gateway, sink, letters, SystemClock())

        async def turns() -> HarnessExit:
            journal = Journal(sink, ports.clock, history)
            try:
                if snapshot.continue_from is not None and not history.begun:
                    taken = await taken_over(store, snapshot.continue_from)
                    failpoints.hit("harness.continue.before")
                    await journal.append(taken)
                    failpoints.hit("harness.continue.after")
                if snapshot.tools:
                    failpoints.hit("harness.connect.before")
                    await gateway.connect()
            except SourceGone as gone:
                return await _failed(journal, "StoreLost", gone)
            except GatewayRefused as refusal:
                return await _failed(journal, "GatewayRefused", refusal)
            asleep = await run_turns(ports, snapshot, history) is Ending.ASLEEP
            return HarnessExit.ASLEEP if asleep else HarnessExit.FINISHED

        return await _until_told_otherwise(turns(), notices, event_log, settings.epoch)


async def _failed(journal: Journal, reason: str, cause: TowlineError) -> HarnessExit:
    """End a run that cannot begin, or go on; `reason` is one word of the closed list in docs/harness.md."""
    await journal.finish(Fact("run.failed", {"reason": reason, "message": str(cause)}))
    return HarnessExit.FINISHED


async def _recount(found: Found, letters: StoreInbox) -> Totals:
    """What makes `inbox_head` less `prompts` the number of prompts that wait, which decides whether a run is woken.

    Older versions did not count them, and a store that lost a tail may have lost some that nobody can answer any more.
    """
    state, consumed = found.state, found.history.consumed
    if state.totals.prompts == consumed.count and state.incarnation == 1:
        return NOTHING
    waiting, cursor = 0, OWN_PROMPT_ID
    while page := await letters.read_after(cursor):
        waiting += sum(prompt.number <= state.inbox_head and prompt.number not in consumed for prompt in page)
        cursor = page[-1].id
    return Totals(prompts=state.inbox_head - waiting - state.totals.prompts)


def _arrival(settings: HarnessSettings, sealed: Seal, found: Found) -> list[Draft]:
    """The events a harness begins with; the third one when another was here before."""
    now, history = utc_now(), found.history
    started = {"kind": "native", "version": __version__, "epoch": settings.epoch}
    seal = {"filters": sealed.filters, "instructions": sealed.instructions, "landlock_abi": sealed.landlock_abi}
    drafts = [draft("harness.started", started, now=now), draft("harness.sealed", seal, now=now)]
    fields = {"turn": history.turn, "open_calls": len(history.open_calls), "entries": found.entries}
    log.info("harness started", extra={"fields": {**fields, "seal_instructions": sealed.instructions}})
    if history.turn:
        resumed = {"from_seq": found.last_seq, "open_calls": list(history.open_calls)}
        drafts.append(draft("harness.resumed", resumed, now=now))
    return drafts


def open_session() -> aiohttp.ClientSession:
    """For gateway and model alike: no cookies, no proxy of the environment, nothing unpacked behind our byte counts."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)


async def _until_told_otherwise(
    turns: Coroutine[None, None, HarnessExit], notices: Notices, event_log: EventLog, epoch: int
) -> HarnessExit:
    """Run `turns` to its end, unless the run is cancelled, closed or taken over meanwhile: then raise what happened."""
    working = asyncio.ensure_future(turns)
    watching = asyncio.ensure_future(_watch(notices, event_log, epoch))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await watching  # raises
        return await working
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(notices: Notices, event_log: EventLog, epoch: int) -> None:
    """Returns never; raises StopWriting. An away store is the appender's to report, not ours."""
    async with notices.watch(event_log.run) as watch:
        while True:
            try:
                check(await event_log.state(), epoch)
            except StoreUnavailable as fault:
                log.warning("run state unread", extra={"fields": {"cause": str(fault)}})
            kinds: set[str] = set()
            deadline = time.monotonic() + WATCH_SECONDS
            while "cancel" not in kinds and (left := deadline - time.monotonic()) > 0:
                kinds |= await watch.wait(left)
