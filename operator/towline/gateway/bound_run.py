"""What one gateway keeps in memory of the runs that call it: nothing that Redis does not know better.

`calls.py` gets a run here for each call. A run's entry holds its snapshot, its places, its sandbox lease and the calls
in progress, and is dropped when it has been quiet for a while. While a call takes long, `attend` listens for the run's
cancellation and for the end of its sandbox.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.errors import SandboxFailed, StoreUnavailable, TowlineError
from towline.events import calls as ledger
from towline.events import runs as run_events
from towline.events import sandbox as sandbox_events
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store
from towline.gateway.background import spawn
from towline.gateway.exchange import ToolAnswer, ToolRequest
from towline.gateway.interrupt import Interrupt, Unwanted
from towline.gateway.lease import Lease, ProvedSandbox, gone
from towline.gateway.limits import Places, RunPlaces
from towline.gateway.tools import Tool, offered

log = logging.getLogger(__name__)

ATTEND_AFTER_SECONDS = 0.25
"""A call that ends sooner is not worth a subscription: each of its own events would be a notice to read."""

POLL_SECONDS = 2.0
"""How often a long call looks by itself whether it was cancelled or lost its sandbox; heals a lost notice."""

CANCEL_SECONDS = 4.5
"""For the tool server to end a cancelled command: it kills after 2 s. Then the call settles without it."""

KILL_PAUSES_SECONDS = (0.1, 0.5, 1.0)
"""Before a kill is sent again that did not get through."""

QUIET_SECONDS = 300.0
"""A run that made no call for so long is forgotten; its next call costs one read of its snapshot."""

MAX_RUNS = 4096
MAX_LOST = 256


class UnknownRun(TowlineError):
    """The token is good, but the store knows no such run (any more)."""


@dataclass(slots=True, eq=False)
class Execution:
    """A call in progress on this gateway, detached from the requests that wait for it."""

    request: ToolRequest
    epoch: int
    interrupt: Interrupt = field(default_factory=Interrupt)
    sandbox: ProvedSandbox | None = None
    """Set while the call is with a tool server."""
    dispatched: tuple[str, ...] = ()
    """Sandbox and instance of the tool server that has the call."""
    taken: bool = False
    """A tool server has had the call since before it came here."""
    queue: asyncio.Timeout | None = None
    """Set while the call waits for its turn."""
    waiters: int = 0
    task: "asyncio.Task[ToolAnswer] | None" = None

    @property
    def unwanted(self) -> bool:
        return isinstance(self.interrupt.cause, Unwanted)

    def cancel(self) -> None:
        """Explicitly cancelled, with or without its run: kill the command, then settle; at once when none runs."""
        if self.interrupt.cause is not None:
            return
        if self.queue is not None:
            self.queue.reschedule(asyncio.get_running_loop().time())
        may_run = self.taken or self.sandbox is not None
        self.interrupt.raise_for(Unwanted(), grace_seconds=CANCEL_SECONDS if may_run else 0.0)
        self.kill()

    def taken_up(self, *, cancelled: bool) -> None:
        """A tool server has the call, from another gateway. If it is to end, that takes its time."""
        self.taken = True
        if cancelled:
            self.cancel()
        if self.unwanted:
            self.interrupt.allow(CANCEL_SECONDS)

    def hand_to(self, sandbox: ProvedSandbox) -> None:
        """From now on the call may be running there."""
        self.sandbox = sandbox
        if self.unwanted:
            self.kill()

    def kill(self) -> None:
        """Have the command killed, in case it runs: nobody will wait for it."""
        if self.sandbox is not None:
            call_id = self.request.call_id
            failpoints.hit("gateway.kill")
            spawn(_kill(self.sandbox, call_id), f"killing call {call_id}")


async def _kill(sandbox: ProvedSandbox, call_id: str) -> None:
    for pause in (*KILL_PAUSES_SECONDS, None):
        try:
            await sandbox.client.cancel(sandbox.instance, call_id)
            return
        except SandboxFailed as fault:
            if pause is None or fault.reason != "Unreachable":
                raise
        await asyncio.sleep(pause)


@dataclass(slots=True, eq=False)
class BoundRun:
    """One run in memory."""

    ref: RunRef
    snapshot: Snapshot
    places: RunPlaces
    lease: Lease
    tools: dict[str, Tool]
    executions: dict[str, Execution] = field(default_factory=dict)
    lost: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Where calls were that the store has forgotten and nobody has asked for again: they must go nowhere else."""
    used: float = 0.0
    attendant: "asyncio.Task[None] | None" = None

    def remember(self, execution: Execution) -> None:
        """The store has lost the record of this call."""
        if execution.dispatched:
            self.lost[execution.request.call_id] = execution.dispatched
            while len(self.lost) > MAX_LOST:
                del self.lost[next(iter(self.lost))]


class BoundRuns:
    """The runs of one gateway."""

    def __init__(
        self, store: Store, notices: Notices, *, installation_secret: bytes, now: Callable[[], datetime]
    ) -> None:
        self._store, self._notices = store, notices
        self._secret, self._now = installation_secret, now
        self._places = Places()
        self._runs: OrderedDict[tuple[str, str], BoundRun] = OrderedDict()

    @property
    def calls_in_progress(self) -> int:
        return self._places.taken

    async def get(self, namespace: str, uid: str) -> BoundRun:
        """The run's entry, its snapshot read on first use; raises UnknownRun, StoreUnavailable."""
        run = self._runs.get((namespace, uid))
        if run is None:
            run = await self._bind(namespace, uid)
        run.used = asyncio.get_running_loop().time()
        self._runs.move_to_end((namespace, uid))
        return run

    def attend_later(self, run: BoundRun) -> asyncio.TimerHandle:
        """Listen for the run's cancellation once a call has taken long enough to be worth it; cancel when it ends."""
        return asyncio.get_running_loop().call_later(ATTEND_AFTER_SECONDS, self._begin_attending, run)

    async def look(self, run: BoundRun) -> None:
        """Act on what the store says now: a cancelled run ends its calls, a cancelled call itself, a lost sandbox those
        that it had."""
        failpoints.hit("gateway.look")
        state = await EventLog(self._store, run.ref).state()
        over = state.cancel is not None or state.closed is not None
        unwanted = await ledger.unwanted(self._store, run.ref, list(run.executions)) if not over else set()
        for call_id, execution in list(run.executions.items()):
            if over or call_id in unwanted:
                execution.cancel()
        if any(execution.sandbox is not None for execution in run.executions.values()):
            record = await sandbox_events.read(self._store, run.ref)
            for execution in list(run.executions.values()):
                if execution.sandbox is not None and (fault := gone(record, execution.sandbox.name)) is not None:
                    execution.interrupt.raise_for(fault)
                    run.lease.doubt()

    async def forget_quiet(self) -> None:
        """Drop the entries of quiet runs; called now and then."""
        quiet = asyncio.get_running_loop().time() - QUIET_SECONDS
        for key, run in list(self._runs.items()):
            if len(self._runs) <= MAX_RUNS and run.used > quiet:
                break
            if not run.executions:
                del self._runs[key]
                await run.lease.aclose()

    async def aclose(self) -> None:
        """Let go of everything. Calls in progress stay open in the ledger: another gateway attaches to them."""
        tasks = [
            task
            for run in self._runs.values()
            for task in (run.attendant, *(each.task for each in run.executions.values()))
            if task is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        for run in self._runs.values():
            await run.lease.aclose()

    async def _bind(self, namespace: str, uid: str) -> BoundRun:
        ref = RunRef(namespace, uid)
        raw = await run_events.load_spec(self._store, ref)
        if raw is None:
            raise UnknownRun(f"no run {namespace}/{uid}")
        if (known := self._runs.get((namespace, uid))) is not None:
            return known  # bound by a call that came meanwhile
        snapshot = Snapshot.from_json(raw)
        lease = Lease(self._store, self._notices, ref, snapshot, installation_secret=self._secret, now=self._now)
        run = BoundRun(ref, snapshot, self._places.of_run(), lease, offered(snapshot))
        self._runs[(namespace, uid)] = run
        failpoints.hit("gateway.bound")
        return run

    def _begin_attending(self, run: BoundRun) -> None:
        if run.executions and (run.attendant is None or run.attendant.done()):
            run.attendant = spawn(self._attend(run), f"attending run {run.ref.uid}")

    async def _attend(self, run: BoundRun) -> None:
        """Until the run has no call in progress: look at once, at every notice that matters, and every few seconds."""
        clock = asyncio.get_running_loop().time
        async with self._notices.watch(run.ref) as watch:
            heard: set[str] = set()
            look_at = clock()
            while run.executions:
                if heard & {"cancel", "sandbox"} or clock() >= look_at:
                    try:
                        await self.look(run)
                    except StoreUnavailable as fault:
                        log.warning("run not looked at", extra={"fields": {"run": run.ref.uid, "cause": str(fault)}})
                    look_at = clock() + POLL_SECONDS
                heard = await watch.wait(POLL_SECONDS)
