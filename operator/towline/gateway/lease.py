"""A run's sandbox, for a call that needs it: wanted, waited for, proved, seeded; kept until it is gone.

`calls.py` asks for each call. The gateway creates nothing: it marks the want, waits for the operator's record, and
dials that address only. What stands here is a cache of what the record and the tool server said.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.errors import SandboxFailed, TowlineError
from towline.events import sandbox as sandbox_events
from towline.events.calls import Call
from towline.events.event import RunRef
from towline.events.notices import Notices
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.gateway.sandbox_client import NETWORK_NOT_PROVED, SandboxClient
from towline.naming import sandbox_key

log = logging.getLogger(__name__)

TRUSTED_SECONDS = 1.0
"""A sandbox that answered this recently is not asked for again: a stream of calls costs no read of its record."""

POLL_SECONDS = 2.0
"""How often a waiter looks at the record by itself; a notice wakes it at once, this heals a lost one."""

UNREACHABLE_SECONDS = 10.0
"""How long a sandbox that is said to be ready may refuse connections."""

PAUSE_SECONDS = 0.05
"""Between two tries to reach it."""

SAY_WHY_SECONDS = 0.5
"""So much sooner than the caller gives up on a start, an open network is named as the cause."""

ACKNOWLEDGE_SECONDS = 30.0
"""How long after its settling a call is acknowledged: a gateway that was about to attach to it must still find it, and
one that is asked again because the store has lost the result."""

SILENT_CALLS = 2
"""So many in a row without an answer that can be used, and the sandbox is given up: a third would wait in vain, too."""

UNHEARD = float("-inf")


@dataclass(slots=True)
class ProvedSandbox:
    """A sandbox whose tool server has proved its key. `heard` is the loop time of its last answer."""

    client: SandboxClient
    instance: str
    heard: float
    untold: bool = False
    """Its workspace began anew, and no recorded result says so yet."""

    @property
    def name(self) -> str:
        return self.client.name


def outlived(record: SandboxRecord, name: str) -> bool:
    """Whether the record is older than the sandbox of that name: the store lost what came later, the sandbox lives."""
    _, _, own = name.rpartition("-")
    generation = int(own) if own.isdigit() else 0
    return record.generation < generation or (record.generation == generation and record.state == "Starting")


def gone(record: SandboxRecord, name: str) -> SandboxFailed | None:
    """Why the sandbox of that name is no more, going by the record; None while nothing says so."""
    if (record.name == name and record.state == "Ready") or (record.name != name and outlived(record, name)):
        return None
    if record.name == name:
        return SandboxFailed(record.reason or "Lost", record.message or "the sandbox was lost")
    return SandboxFailed("Lost", "the sandbox was replaced by another one")


class Lease:
    """The one sandbox of one run, as one gateway knows it."""

    def __init__(
        self,
        store: Store,
        notices: Notices,
        run: RunRef,
        snapshot: Snapshot,
        *,
        installation_secret: bytes,
        now: Callable[[], datetime],
    ) -> None:
        self._store, self._notices, self._run, self._snapshot = store, notices, run, snapshot
        self._secret, self._now = installation_secret, now
        self._current: ProvedSandbox | None = None
        self._proving = asyncio.Lock()
        self._settled: deque[tuple[float, str]] = deque(maxlen=1024)
        self._silent = ("", 0)
        """A sandbox, and how many calls in a row it has left without a usable answer."""

    async def sandbox_for(self, call_id: str) -> ProvedSandbox:
        """A sandbox for a new call, started if need be; raises SandboxFailed. The caller bounds the time."""

        unproved = ""
        """The sandbox that came up for this call: its end is the call's answer, not a reason to start another one. One
        that was there before may have vanished unnoticed, and is replaced."""

        async def ask() -> ProvedSandbox:
            nonlocal unproved
            if unproved:
                record = await sandbox_events.read(self._store, self._run)
                if (fault := gone(record, unproved)) is not None:
                    raise fault
            else:
                record, is_new = await self._ready(call_id)
                unproved = record.name if is_new else ""
            try:
                return await self._proved(record)
            except SandboxFailed as fault:
                if fault.reason == NETWORK_NOT_PROVED:
                    unproved = record.name
                raise

        return self._trusted() or await _patiently(ask, self._snapshot.sandbox.start_timeout_seconds)

    async def sandbox_of(self, call: Call) -> ProvedSandbox:
        """The very tool server that has the call already, and no other; raises SandboxFailed when it is gone.

        A want is marked only where the store has lost the record of a sandbox that lives.
        """

        async def ask() -> ProvedSandbox:
            record = await sandbox_events.read(self._store, self._run)
            if (fault := gone(record, call.sandbox)) is not None:
                raise fault
            if record.name != call.sandbox:  # whoever runs it will say again that it is there
                record, _ = await self._ready(call.call_id)
                if (fault := gone(record, call.sandbox)) is not None:
                    raise fault
                if record.name != call.sandbox:
                    raise SandboxFailed("Unreachable", "the store's record of the sandbox is not up to date yet")
            return await self._proved(record)

        sandbox = await _patiently(ask, self._snapshot.sandbox.start_timeout_seconds)
        if sandbox.instance != call.instance:
            raise SandboxFailed("Restarted", "the tool server that had the call was restarted")
        return sandbox

    def doubt(self) -> None:
        """Ask again before the next call: something happened to the sandbox."""
        if self._current is not None:
            self._current.heard = UNHEARD

    def answered(self) -> None:
        """It ran a call and said so."""
        self._silent = ("", 0)

    def told(self, name: str) -> None:
        """A recorded result says of the sandbox of that name that its workspace began anew."""
        if self._current is not None and self._current.name == name:
            self._current.untold = False

    async def silent(self, epoch: int, fault: SandboxFailed) -> None:
        """A call ended without a usable answer. A tool server that hangs is replaced, though its process lives."""
        self.doubt()
        if self._current is None:
            return
        name = self._current.name
        known, count = self._silent
        self._silent = (name, count + 1 if known == name else 1)
        if self._silent[1] < SILENT_CALLS:
            return
        self.answered()
        message = f"{SILENT_CALLS} calls in a row had no usable answer; the last one: {fault.message}"
        try:
            await sandbox_events.give_up(self._store, self._run, epoch, name, message, now=self._now())
        except TowlineError as why:
            log.warning("sandbox not given up", extra={"fields": {"sandbox": name, "cause": str(why)}})
        else:
            log.warning("sandbox given up", extra={"fields": {"run": self._run.uid, "sandbox": name}})

    def acknowledge(self, call_id: str) -> None:
        """The call is settled: its result need not be kept in the sandbox any more."""
        self._settled.append((_now(), call_id))

    def acknowledged(self) -> list[str]:
        """Calls to name as acknowledged in the next request."""
        ripe: list[str] = []
        until = _now() - ACKNOWLEDGE_SECONDS
        while self._settled and self._settled[0][0] < until and len(ripe) < 64:
            ripe.append(self._settled.popleft()[1])
        return ripe

    async def aclose(self) -> None:
        if self._current is not None:
            await self._current.client.aclose()

    def _trusted(self) -> ProvedSandbox | None:
        known = self._current
        return known if known is not None and _now() - known.heard < TRUSTED_SECONDS else None

    async def _ready(self, call_id: str) -> tuple[SandboxRecord, bool]:
        """The record once it is Ready, and whether that had to be waited for.

        Raises SandboxFailed when this attempt to start one failed.
        """
        record = await sandbox_events.want(self._store, self._run, call_id, now=self._now())
        if record.state == "Ready":
            return record, False
        failpoints.hit("gateway.want.after")
        async with self._notices.watch(self._run) as watch:
            while True:
                record = await sandbox_events.read(self._store, self._run)
                if record.state == "Ready":
                    return record, True
                if record.state == "Absent":  # the store lost the want
                    await sandbox_events.want(self._store, self._run, call_id, now=self._now())
                elif record.state != "Starting":  # as it was from the want on: this is the answer to it
                    raise SandboxFailed(record.reason or "StartFailed", record.message or "the sandbox did not start")
                await watch.wait(POLL_SECONDS)

    async def _proved(self, record: SandboxRecord) -> ProvedSandbox:
        """The tool server behind the record, after its proof; a fresh workspace gets the run's files."""
        async with self._proving:  # of eight calls that come at once, one asks
            if (known := self._trusted()) is not None and known.name == record.name:
                return known
            sandbox = await self._dialled(record)
            failpoints.hit("gateway.sandbox.before")
            hello = await sandbox.client.hello()
            if not hello.seeded:
                failpoints.hit("gateway.seed.before")
                await sandbox.client.seed(hello.instance, self._snapshot.workspace)
            if hello.instance != sandbox.instance:
                sandbox.untold = hello.fresh and record.generation > 1 and record.told != record.name
                fields = {"run": self._run.uid, "sandbox": record.name, "instance": hello.instance[:8]}
                log.info("sandbox proved", extra={"fields": fields})
            sandbox.instance, sandbox.heard = hello.instance, _now()
            failpoints.hit("gateway.sandbox.after")
            return sandbox

    async def _dialled(self, record: SandboxRecord) -> ProvedSandbox:
        """The connections to the record's sandbox; those to the one before are closed."""
        known = self._current
        if known is None or (known.client.name, known.client.address) != (record.name, record.address):
            await self.aclose()
            self._current = None
            client = SandboxClient(record.name, record.address, sandbox_key(self._secret, record.name))
            self._current = known = ProvedSandbox(client, instance="", heard=UNHEARD)
        return known


async def _patiently(ask: Callable[[], Awaitable[ProvedSandbox]], start_timeout_seconds: float) -> ProvedSandbox:
    """Repeat while nothing answers, but not for long: the operator may be about to say that the sandbox is gone.

    The time is counted from the first attempt to reach one, not from the wish for it. A sandbox that answers that its
    network is not proved yet is given the whole time that a start may take.
    """
    proved_by = _now() + start_timeout_seconds - SAY_WHY_SECONDS
    until: float | None = None
    while True:
        try:
            return await ask()
        except SandboxFailed as fault:
            if fault.reason == NETWORK_NOT_PROVED:
                if _now() > proved_by:
                    raise SandboxFailed("PolicyNotEnforced", f"{fault.message}: no call runs in it") from fault
                until = None
            elif fault.reason != "Unreachable" or (until is not None and _now() > until):
                raise
            else:
                until = until if until is not None else _now() + UNREACHABLE_SECONDS
        await asyncio.sleep(PAUSE_SECONDS)


def _now() -> float:
    return asyncio.get_running_loop().time()
