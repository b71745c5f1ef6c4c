"""One harness process: wires the loop to the store, the gateway and the model, and turns its end into an exit code.

Called by `__main__.py` after the seal. What it knows of the run it reads from the store; what it writes is fenced by
its epoch. Any end but a terminal event leaves the run to the next process, which resumes from the log.
"""

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import aiohttp

from towline import __version__, failpoints, inbox
from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.errors import Fenced, Invalid, LogClosed, RunCancelled, StoreUnavailable, TowlineError
from towline.events import live, runs
from towline.events.appender import Appender
from towline.events.event import Draft, RunRef, draft
from towline.events.log import EventLog, RunState
from towline.events.notices import Notices
from towline.events.store import Store
from towline.events.totals import NOTHING, Totals
from towline.exit_codes import HarnessExit
from towline.harness.deltas import LiveDeltas
from towline.harness.fold import History, fold
from towline.harness.loop import Ending, run_turns
from towline.harness.models.build import model_for
from towline.harness.ports import GatewayUnavailable, Ports
from towline.harness.tools import Gateway
from towline.seal import Seal
from towline.settings import HarnessSettings

log = logging.getLogger(__name__)

STORE_PATIENCE_SECONDS = 15.0
"""For a store that is away at the start: a failover or the restart of a pod, no more."""

WATCH_SECONDS = 5.0
"""A lost notice of a cancellation, or of a successor, is noticed after this long."""


class LogSink:
    """The Sink port over the event log and its live stream."""

    def __init__(self, store: Store, run: RunRef, epoch: int) -> None:
        self._store, self._run, self._epoch = store, run, epoch
        self._appender = Appender(store, run, src="harness", epoch=epoch, nonce=secrets.token_hex(8))

    async def append(self, drafts: Sequence[Draft], totals: Totals = NOTHING) -> None:
        failpoints.hit("harness.append.before")
        await self._appender.append(drafts, totals)
        failpoints.hit("harness.append.after")
        for each in drafts:
            log.debug("event appended", extra={"fields": {"type": each.type, "id": each.id}})

    async def finish(self, terminal: Draft, *, seen_prompt: int | None = None) -> None:
        failpoints.hit("harness.finish.before")
        seq = await self._appender.finish(terminal, seen_prompt=seen_prompt)
        failpoints.hit("harness.finish.after")
        log.info("run finished", extra={"fields": {"type": terminal.type, "seq": seq}})

    def deltas(self, message_id: str) -> LiveDeltas:
        async def push(delta: Mapping[str, Any]) -> None:
            failpoints.hit("harness.delta.before")
            await live.push_delta(self._store, self._run, epoch=self._epoch, delta=delta)

        return LiveDeltas(push, message_id)

    async def recovered_text(self, message_id: str) -> str:
        text, after = "", "0-0"
        while deltas := await live.read_deltas(self._store, self._run, after):
            after = deltas[-1][0]
            for _, delta in deltas:
                ours = delta.get("message_id") == message_id and delta["kind"] == "text"
                if ours and delta["offset"] == len(text):
                    text += delta["text"]
        return text


class StoreInbox:
    """The Inbox port."""

    def __init__(self, store: Store, run: RunRef) -> None:
        self._store, self._run = store, run

    async def read_after(self, cursor: str) -> Sequence[inbox.Prompt]:
        prompts = await inbox.read_after(self._store, self._run, cursor, count=1)
        failpoints.hit("harness.inbox.after")
        return prompts


class SystemClock:
    """The Clock port."""

    def now(self) -> datetime:
        return utc_now()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def new_message_id(self) -> str:
        return f"msg_{secrets.token_hex(6)}"


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
        snapshot, history, last_seq = await _read(store, event_log, settings.epoch)
        sink = LogSink(store, ref, settings.epoch)
        failpoints.hit("harness.read.after")
        await sink.append(_arrival(settings, sealed, history, last_seq))
        failpoints.hit("harness.arrival.after")
        notices = Notices(store)
        closing.push_async_callback(notices.aclose)
        session = await closing.enter_async_context(open_session())
        gateway = Gateway(session, settings.gateway_url, settings.gateway_token_file)
        model = model_for(snapshot.model, session, settings.model_key_file)
        ports = Ports(model, gateway, sink, StoreInbox(store, ref), SystemClock())

        async def turns() -> None:
            if snapshot.tools:
                failpoints.hit("harness.connect.before")
                await gateway.connect()
            if await run_turns(ports, snapshot, history) is Ending.FINISHED:
                return
            async with notices.watch(ref) as watch:
                while await run_turns(ports, snapshot, history) is Ending.WAITING:
                    failpoints.hit("harness.waiting.after")
                    # Until there is a prompt; a notice may be lost, so silence is a reason to look, too.
                    while (kinds := await watch.wait(WATCH_SECONDS)) and "inbox" not in kinds:
                        pass

        await _until_told_otherwise(turns(), notices, event_log, settings.epoch)
    return HarnessExit.FINISHED


async def _read(store: Store, event_log: EventLog, epoch: int) -> tuple[Snapshot, History, int]:
    """The run's snapshot, its history, and the seq of its last event. Raises StopWriting when it is not ours to run."""
    state = await event_log.state()
    _check(state, epoch)
    raw = await runs.load_spec(store, event_log.run)
    if raw is None:
        raise Invalid(f"run {event_log.run.namespace}/{event_log.run.uid}: the store holds no spec")
    history, last_seq = History(), 0
    while page := await event_log.read(last_seq + 1):
        fold(page, history)
        last_seq = page[-1].seq
    return Snapshot.from_json(raw), history, last_seq


def _check(state: RunState, epoch: int) -> None:
    if state.closed is not None:
        raise LogClosed(state.closed)
    if state.epoch > epoch:
        raise Fenced(epoch, state.epoch)
    if state.cancel is not None:
        raise RunCancelled(state.cancel)


def _arrival(settings: HarnessSettings, sealed: Seal, history: History, last_seq: int) -> list[Draft]:
    """The events a harness begins with; the third one when another was here before."""
    now = utc_now()
    started = {"kind": "native", "version": __version__, "epoch": settings.epoch}
    seal = {"filters": sealed.filters, "instructions": sealed.instructions, "landlock_abi": sealed.landlock_abi}
    drafts = [draft("harness.started", started, now=now), draft("harness.sealed", seal, now=now)]
    fields = {"turn": history.turn, "open_calls": len(history.open_calls)}
    log.info("harness started", extra={"fields": {**fields, "seal_instructions": sealed.instructions}})
    if history.turn:
        resumed = {"from_seq": last_seq, "open_calls": list(history.open_calls)}
        drafts.append(draft("harness.resumed", resumed, now=now))
    return drafts


def open_session() -> aiohttp.ClientSession:
    """For gateway and model alike: no cookies, no proxy of the environment, nothing unpacked behind our byte counts."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)


async def _until_told_otherwise(
    turns: Coroutine[None, None, None], notices: Notices, event_log: EventLog, epoch: int
) -> None:
    """Run `turns` to its end, unless the run is cancelled, closed or taken over meanwhile: then raise what happened."""
    working = asyncio.ensure_future(turns)
    watching = asyncio.ensure_future(_watch(notices, event_log, epoch))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        await (working if working.done() else watching)
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(notices: Notices, event_log: EventLog, epoch: int) -> None:
    """Returns never; raises StopWriting. An away store is the appender's to report, not ours."""
    async with notices.watch(event_log.run) as watch:
        while True:
            try:
                _check(await event_log.state(), epoch)
            except StoreUnavailable as fault:
                log.warning("run state unread", extra={"fields": {"cause": str(fault)}})
            kinds: set[str] = set()
            deadline = time.monotonic() + WATCH_SECONDS
            while "cancel" not in kinds and (left := deadline - time.monotonic()) > 0:
                kinds |= await watch.wait(left)
