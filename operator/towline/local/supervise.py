"""The loop that plays the operator for one run: observe, `plan`, carry out, wait for a change; then end everything.

Called by `launcher.py` once the run exists in the store. It decides nothing itself. Whatever it started is gone when
`run` returns, however it returns.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.errors import LogClosed, StoreUnavailable
from towline.events import runs
from towline.events.event import Draft, RunRef, draft, lasting_id
from towline.events.log import EventLog, RunState
from towline.events.notices import Notices
from towline.local.faults import MachineCannot
from towline.local.plan import (
    Action,
    CreateSandbox,
    Finish,
    KillHarness,
    Observed,
    RecordHarnessLost,
    RecordSandbox,
    ReleaseSandbox,
    RequestCancel,
    StartGateway,
    StartHarness,
    TearDown,
    Wake,
    plan,
)
from towline.local.processes import Child
from towline.local.sandboxes import Sandboxes
from towline.local.store import OwnedStore
from towline.local.watch import Viewer
from towline.local.workers import Surroundings, Workers

RECHECK_SECONDS = 1.0  # a lost notice, and each time limit, is noticed no later
STORE_RESTARTS = 3
STORE_AWAY_SECONDS = 30.0
ASLEEP_NOTE = "asleep: the harness has ended, and the next prompt starts one"


@dataclass(slots=True)
class Stop:
    """A person's wish to end the run: the first request cancels it, the second one kills."""

    reason: str | None = None
    impatient: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, reason: str) -> None:
        self.impatient = self.reason is not None
        self.reason = self.reason or reason
        self.changed.set()


class WorkingTime:
    """How long a run has worked: the time since its start, but for that in which it waited for a prompt. Pure."""

    def __init__(self, now: float) -> None:
        self._seconds, self._last = 0.0, now

    def at(self, now: float, *, waiting: bool) -> timedelta:
        """`waiting`: since the last look."""
        if not waiting:
            self._seconds += now - self._last
        self._last = now
        return timedelta(seconds=self._seconds)


class Supervisor:
    """One run, from the first harness to its outcome."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        run: RunRef,
        held: OwnedStore,
        notices: Notices,
        sandboxes: Sandboxes,
        stop: Stop,
        surroundings: Surroundings,
        viewer: Viewer,
    ) -> None:
        self._snapshot, self._run, self._held, self._notices = snapshot, run, held, notices
        self._sandboxes, self._stop, self._viewer = sandboxes, stop, viewer
        self._workers = Workers(run, held, surroundings, self.poke)
        self._log = EventLog(held.store, run)
        self._crashed_at: dict[int, int] = {}
        """Epoch of a harness that crashed → how far the run had come."""
        self._losses: list[RecordHarnessLost] = []
        self._incarnation = 1
        self._working = WorkingTime(time.monotonic())
        self._waited = False
        self._cancel_seen: float | None = None
        self._over = False
        self._blamed: Child | None = None
        self._store_restarts = 0
        self._store_away_since: float | None = None

    def last_words(self) -> str:
        """The end of the log of the process that ended the run; empty when none did."""
        return self._blamed.tail() if self._blamed is not None else ""

    def poke(self) -> None:
        """Something changed: look again."""
        self._stop.changed.set()

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when the run has its terminal event and nothing of it is left. Raises MachineCannot."""
        listener = asyncio.create_task(self._listen())
        try:
            while await self._step():
                pass
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
            await self._tear_down()

    async def _step(self) -> bool:
        """Looks once and does what is due; False when the run is over."""
        self._stop.changed.clear()
        try:
            actions = plan(await self._observe())
            for action in actions:
                if isinstance(action, TearDown):
                    self._over = True
                    return False
                await self._carry_out(action)
        except StoreUnavailable as fault:
            await self._revive_store(fault)
            return True
        self._store_away_since = None
        if not actions:
            try:
                await asyncio.wait_for(self._stop.changed.wait(), RECHECK_SECONDS)
            except TimeoutError:
                pass
        return True

    async def _listen(self) -> None:
        """Turns notices from the store into pokes. Losing one costs a recheck, no more."""
        async with self._notices.watch(self._run) as changes:
            while True:
                if await changes.wait(RECHECK_SECONDS) & {"log", "want", "cancel", "inbox", "lost"}:
                    self.poke()

    async def _observe(self) -> Observed:
        state = await self._log.state()
        if state.incarnation != self._incarnation:
            await self._tell_again()
            self._incarnation = state.incarnation
        now = time.monotonic()
        if state.cancel is not None and self._cancel_seen is None:
            self._cancel_seen = now
        deadline, finish_after = self._snapshot.active_deadline_seconds, self._snapshot.idle_policy.finish_after_seconds
        harness = self._workers.harness_seen
        age = self._working.at(now, waiting=self._waited)
        self._waited = bool(state.waiting) and not state.unread
        self._say_asleep(harness is not None and harness.asleep)
        return Observed(
            epoch=state.epoch,
            closed=state.closed is not None,
            cancel=state.cancel,
            want_sandbox=state.want == "sandbox",
            sandbox_given_up=state.want == "sandbox" and await self._sandboxes.given_up(),
            unread=state.unread,
            waiting=_waiting(state),
            finish_after=None if finish_after is None else timedelta(seconds=finish_after),
            progress=state.progress,
            lost_at=tuple(seq for epoch, seq in self._crashed_at.items() if harness and epoch < harness.epoch),
            backoff_limit=self._snapshot.backoff_limit,
            harness=harness,
            gateway_running=self._workers.gateway_running,
            gateway_crashes=self._workers.gateway_crashes,
            sandbox=self._sandboxes.seen,
            eager_sandbox=self._snapshot.sandbox.policy == "Eager",
            stop=self._stop.reason,
            impatient=self._stop.impatient,
            age=age,
            active_deadline=None if deadline is None else timedelta(seconds=deadline),
            since_cancel=timedelta(seconds=now - (self._cancel_seen or now)),
        )

    def _say_asleep(self, asleep: bool) -> None:
        if asleep and not self._held.holder.asleep:
            self._viewer.note(ASLEEP_NOTE)
        self._held.say_asleep(asleep)

    async def _carry_out(self, action: Action) -> None:
        store, run = self._held.store, self._run
        match action:
            case RequestCancel(reason):
                await runs.request_cancel(store, run, reason)
            case KillHarness():
                await self._workers.end_harness(kindly=False)
            case Finish():
                await self._finish(action)
            case RecordHarnessLost():
                await self._record_loss(action)
            case Wake(epoch):
                await self._append(epoch, [], guard=f"epoch:{epoch}")
            case StartHarness(epoch):
                self._workers.start_harness(epoch)
            case StartGateway():
                self._workers.start_gateway()
            case CreateSandbox():
                await self._sandboxes.create()
            case RecordSandbox():
                await self._sandboxes.record()
            case ReleaseSandbox():
                await self._sandboxes.release()
            case TearDown():
                raise AssertionError("the loop ends before it")
            case _:
                assert_never(action)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _finish(self, action: Finish) -> None:
        if action.reason in ("CrashLoop", "BackoffLimitExceeded", "SealFailed"):
            self._blamed = self._workers.harness
        elif action.reason == "GatewayCrashLoop":
            self._blamed = self._workers.gateway
        if action.outcome == "Failed":
            data = {"reason": action.reason, "message": action.message}
            terminal = draft("run.failed", data, now=utc_now())
        else:
            terminal = draft("run.cancelled", {"reason": action.reason}, now=utc_now())
        try:
            await runs.finish(self._held.store, self._run, action.epoch, terminal)
        except LogClosed:
            pass  # a recorded outcome beats ours

    async def _record_loss(self, action: RecordHarnessLost) -> None:
        reason = "Killed" if action.exit.signal is not None else "Exited"
        data = {
            "epoch": action.lost_epoch,
            "reason": reason,
            "exit_code": action.exit.code,
            "signal": action.exit.signal,
        }
        if action.crashed_at is not None:
            self._crashed_at[action.lost_epoch] = action.crashed_at
        what = f"harness.lost {action.lost_epoch}"
        lost = draft("harness.lost", data, now=utc_now(), event_id=lasting_id(self._run, what))
        await self._append(action.epoch, [lost], guard=f"harness.lost:{action.lost_epoch}")
        if all(known.lost_epoch != action.lost_epoch for known in self._losses):
            self._losses.append(action)

    async def _append(self, epoch: int, drafts: Sequence[Draft], *, guard: str) -> None:
        try:
            await runs.append_once(self._held.store, self._run, epoch, drafts, guard=guard)
        except LogClosed:
            pass  # cancelled meanwhile

    async def _tell_again(self) -> None:
        """The store lost a tail: whatever of ours was in it is told again, under its old ids; the rest is untouched."""
        await runs.create(self._held.store, self._run, self._snapshot.to_json(), now=utc_now())
        granted = max((await self._log.state()).epoch, self._workers.granted)
        for loss in self._losses:
            await self._record_loss(replace(loss, epoch=granted))
        self._sandboxes.tell_again()

    async def _revive_store(self, fault: StoreUnavailable) -> None:
        """The store did not answer: start it again if it died, else give it a moment; MachineCannot beyond a bound."""
        now = time.monotonic()
        self._store_away_since = self._store_away_since or now
        if not self._held.valkey.running and self._store_restarts < STORE_RESTARTS:
            self._store_restarts += 1
            await self._held.restart(self.poke)
        elif not self._held.valkey.running or now - self._store_away_since > STORE_AWAY_SECONDS:
            raise MachineCannot(f"the event store is gone: {fault}\n{self._held.valkey.tail()}") from fault
        else:
            await asyncio.sleep(0.2)

    async def _tear_down(self) -> None:
        """Ends what is left, the harness first: nothing must act on a sandbox that is being destroyed."""
        await self._workers.end_harness(kindly=self._over and not self._stop.impatient)
        await self._sandboxes.destroy()
        await self._workers.end_gateway()


def _waiting(state: RunState) -> timedelta:
    """How long the run has been at rest, by the clock that wrote the log: this machine's."""
    return utc_now() - datetime.fromisoformat(state.waiting) if state.waiting else timedelta()
