"""Everything that one job of a sweep runs on: a store, sandboxes, a gateway, and runs whose processes may die.

It plays the operator as plainly as can be: a harness that ended without a terminal event is followed by the next epoch
at once, a gateway by another one at the same address, a wanted sandbox is made. What clients see is recorded for
`towline.testing.checker`.
"""

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.durability.clients import Follower, acknowledged, told
from towline import inbox
from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.errors import Fenced, LogClosed, SandboxFailed, StoreUnavailable
from towline.events import runs
from towline.events import sandbox as records
from towline.events.event import Event, RunRef, draft
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store
from towline.exit_codes import HarnessExit
from towline.gateway.local_identity import mint
from towline.local.processes import Child, Exit, python_module, start
from towline.local.valkey import server_binary, start_valkey
from towline.naming import sandbox_key, sandbox_name
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle
from towline.sandbox.provider import SandboxRequest
from towline.testing.checker import Posted, Recorded

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
RUN_SECONDS = 90.0
"""A run that has not ended by then hangs. On a machine with nothing else to do it takes three seconds."""
MOST_EPOCHS = 30
LOOK_SECONDS = 0.5
T = TypeVar("T")
EFFECTS = "effects"
"""File of the workspace to which a test command appends its word; read from outside."""


@dataclass(frozen=True)
class Arms:
    """What each process of a run is told by TOWLINE_FAILPOINT, by its number in its role, from 1."""

    harness: tuple[str, ...] = ()
    gateway: tuple[str, ...] = ()

    def of(self, role: str, number: int) -> str:
        given: tuple[str, ...] = getattr(self, role)
        return given[number - 1] if number <= len(given) else ""


NO_ARMS = Arms()


class Gateways:
    """Gateway processes, one after the other, behind one listening socket."""

    def __init__(self, rig: "Rig", name: str, arms: Arms = NO_ARMS) -> None:
        self._rig, self._name, self._arms = rig, name, arms
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._closed = False
        self.exits: list[Exit] = []
        self.logs: list[Path] = []
        self.child = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"

    def _start(self) -> Child:
        number = len(self.logs) + 1
        self.logs.append(self._rig.folder / "logs" / f"{self._name}-{number}.log")
        return start(
            "gateway",
            python_module("towline.gateway"),
            environment={
                **ENVIRONMENT,
                "TOWLINE_REDIS_URL": self._rig.url,
                "TOWLINE_LISTEN": f"fd:{self._listener.fileno()}",
                "TOWLINE_INSTALLATION_SECRET_FILE": str(self._rig.secret),
                "TOWLINE_IDENTITY_KEY_FILE": str(self._rig.identity_key),
                "TOWLINE_LOG_LEVEL": "info",
                "TOWLINE_FAILPOINT": self._arms.of("gateway", number),
            },
            log=self.logs[-1],
            folder=self._rig.folder,
            pass_fds=[self._listener.fileno()],
            on_exit=self._ended,
        )

    def _ended(self) -> None:
        assert self.child.exit is not None
        self.exits.append(self.child.exit)
        if not self._closed and len(self.logs) < MOST_EPOCHS:
            self.child = self._start()

    async def aclose(self) -> None:
        self._closed = True
        self.child.kill()
        await self.child.exited.wait()
        self._listener.close()


class Rig:
    """One job: `async with Rig(bundle) as rig`, then any number of runs, several at once if need be."""

    def __init__(self, bundle: Bundle, *, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="tlk-", dir="/tmp"))
        self.url = f"unix://{self.folder}/valkey.sock"
        self.secret = self.folder / "secret"
        self.identity_key = self.folder / "identity"
        self.sandboxes = LocalSandbox(bundle, self.folder / "s")
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> "Rig":
        for path in (self.secret, self.identity_key):
            path.write_text(secrets.token_hex(32))
        try:
            await self.start_valkey()
            self.store = Store.connect(self.url)
            self._closing.push_async_callback(self.store.aclose)
            self.notices = Notices(self.store)
            self._closing.push_async_callback(self.notices.aclose)
            self._closing.push_async_callback(self.sandboxes.aclose)
            self.gateway = Gateways(self, "gateway")
            self._closing.push_async_callback(self.gateway.aclose)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._closing.aclose()
        self.valkey.kill()
        await self.valkey.exited.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def start_valkey(self) -> None:
        """Also again, on the same data, after it was killed."""
        self.valkey = await start_valkey(
            server_binary(),
            data=self.folder / "valkey",
            socket=self.folder / "valkey.sock",
            log=self.folder / "logs" / "valkey.log",
        )


@dataclass
class Run:
    """One run on a rig, from its creation to the record of everything that was seen of it."""

    rig: Rig
    given: dict[str, object]
    """Fields of the snapshot beside names."""
    orders: Sequence[str] = ()
    arms: Arms = NO_ARMS
    own_gateway: bool = False
    patience_seconds: float = RUN_SECONDS
    uid: str = field(default_factory=lambda: secrets.token_hex(8))
    posted: list[Posted] = field(default_factory=list)
    harness_exits: list[Exit] = field(default_factory=list)
    harness: Child | None = None
    on_start: "Callable[[Run], Awaitable[None]] | None" = None
    """Called for each harness that was started, before its end is waited for."""

    def __post_init__(self) -> None:
        self.ref = RunRef("default", self.uid, "run")
        self.log = EventLog(self.rig.store, self.ref)
        self.follower = Follower(self.rig.store, self.ref, self.rig.notices)
        self.volume = self.rig.folder / "volumes" / self.uid
        self.logs: list[Path] = []
        own = self.own_gateway or bool(self.arms.gateway)
        self.gateways = Gateways(self.rig, f"gateway-{self.uid}", self.arms) if own else self.rig.gateway

    # -- what clients do ---------------------------------------------------------------------------------------------

    async def until(self, type: str, nth: int = 1) -> Event:
        """The nth event of its type, as the follower sees it."""
        return await self.follower.until(type, nth)

    async def post(self, content: str, *, key: str, delivery: str = "queue") -> Posted:
        """Posts until somebody says whether it was accepted; notes what was said."""
        while True:
            try:
                prompt = await inbox.post(self.rig.store, self.ref, content, key=key, delivery=delivery)
            except LogClosed:
                self.posted.append(Posted(key, content, None))
            except StoreUnavailable:
                await asyncio.sleep(0.1)
                continue
            else:
                self.posted.append(Posted(key, content, prompt.id))
            return self.posted[-1]

    async def cancel(self, reason: str) -> None:
        await runs.request_cancel(self.rig.store, self.ref, reason)

    # -- the run -----------------------------------------------------------------------------------------------------

    async def play(self, act: Callable[["Run"], Awaitable[None]] | None = None) -> Recorded:
        """To its terminal event, while `act` plays the clients. Raises TimeoutError when there is none."""
        names = {"namespace": "default", "name": "run", "uid": self.uid, "prompt": "Go."}
        snapshot = Snapshot.model_validate({**names, **self.given})
        self._snapshot = snapshot
        await _through(lambda: runs.create(self.rig.store, self.ref, snapshot.to_json(), now=utc_now()))
        following = asyncio.create_task(self.follower.follow())
        beside = [asyncio.create_task(self._make_sandboxes())]
        if act is not None:
            beside.append(asyncio.create_task(act(self)))
        try:
            async with asyncio.timeout(self.patience_seconds):
                await self._supervise()
                await following
                if act is not None and not beside[1].done():
                    await asyncio.wait(beside[1:], timeout=5)
            for task in beside:
                if task.done():
                    task.result()
        finally:
            for task in (following, *beside):
                task.cancel()
            await asyncio.gather(following, *beside, return_exceptions=True)
            await self._end()
        return await self._recorded()

    def passed(self, role: str, number: int) -> list[str]:
        """The points that a process which was told to tell them went by, in order."""
        logs = self.logs if role == "harness" else self.gateways.logs
        return told(logs[number - 1].read_bytes()) if number <= len(logs) else []

    def ended_by_kill(self, role: str, number: int) -> bool:
        """Whether that process died by SIGKILL: its failpoint was reached."""
        exits = self.harness_exits if role == "harness" else self.gateways.exits
        return number <= len(exits) and exits[number - 1].signal == 9

    async def _supervise(self) -> None:
        epoch = 1
        while True:
            self.harness = self.start_harness(epoch)
            if self.on_start is not None:
                await self.on_start(self)
            await self.harness.exited.wait()
            assert self.harness.exit is not None
            self.harness_exits.append(self.harness.exit)
            state = await _through(self.log.state)
            if state.closed is not None:
                return
            assert epoch < MOST_EPOCHS, f"{MOST_EPOCHS} harnesses, the last with {self.harness.exit}"
            epoch = max(epoch, state.epoch) + 1
            if state.cancel is not None:
                await self._finish(epoch, state.cancel)
                return
            if self.harness.exit.code == HarnessExit.ASLEEP:
                await self._sleep()
                continue
            await self.take_over(epoch, self.harness.exit)

    async def take_over(self, epoch: int, end: Exit) -> None:
        """Raise the epoch, which fences what was before."""
        data = {"epoch": epoch - 1, "reason": "Error", "exit_code": end.code, "signal": end.signal}
        lost = draft("harness.lost", data, now=utc_now())
        guard = f"harness.lost:{epoch - 1}"
        await _through(lambda: runs.append_once(self.rig.store, self.ref, epoch, [lost], guard=guard))

    async def _finish(self, epoch: int, reason: str) -> None:
        terminal = draft("run.cancelled", {"reason": reason}, now=utc_now())
        try:
            await _through(lambda: runs.finish(self.rig.store, self.ref, epoch, terminal))
        except LogClosed:
            pass

    async def _sleep(self) -> None:
        """Until there is a reason to wake."""
        async with self.rig.notices.watch(self.ref) as watch:
            while True:
                state = await _through(self.log.state)
                if state.unread > 0 or state.cancel is not None or state.closed is not None:
                    return
                await watch.wait(LOOK_SECONDS)

    def token(self, epoch: int) -> str:
        """What a harness of that epoch shows to the gateway."""
        key = self.rig.identity_key.read_bytes()
        return mint(key, namespace="default", uid=self.uid, epoch=epoch, now=utc_now(), lifetime=timedelta(days=1))

    def start_harness(self, epoch: int) -> Child:
        number = len(self.logs) + 1
        token = self.rig.folder / f"token-{self.uid}-{epoch}"
        token.write_text(self.token(epoch))
        self.logs.append(self.rig.folder / "logs" / f"harness-{self.uid}-{number}.log")
        return start(
            "harness",
            python_module("towline.harness"),
            environment={
                **ENVIRONMENT,
                "TOWLINE_REDIS_URL": self.rig.url,
                "TOWLINE_RUN_NAMESPACE": "default",
                "TOWLINE_RUN_UID": self.uid,
                "TOWLINE_EPOCH": str(epoch),
                "TOWLINE_GATEWAY_URL": self.gateways.url,
                "TOWLINE_GATEWAY_TOKEN_FILE": str(token),
                "TOWLINE_LOG_LEVEL": "debug",
                "TOWLINE_FAILPOINT": self.arms.of("harness", number),
            },
            log=self.logs[-1],
            folder=self.rig.folder,
        )

    # -- sandboxes ---------------------------------------------------------------------------------------------------

    async def _make_sandboxes(self) -> None:
        """Level-triggered: what is wanted is made, what died is recorded as lost."""
        self.sandbox = ""
        losing: asyncio.Task[None] | None = None
        async with self.rig.notices.watch(self.ref) as watch:
            while True:
                try:
                    state = await self.log.state()
                    if state.want == "sandbox" and state.closed is None and (losing is None or losing.done()):
                        losing = await self._make_sandbox(state.epoch)
                except (StoreUnavailable, Fenced):
                    await asyncio.sleep(0.05)
                    continue
                except LogClosed:
                    return
                await watch.wait(LOOK_SECONDS)

    async def _make_sandbox(self, epoch: int) -> "asyncio.Task[None] | None":
        generation = (await records.read(self.rig.store, self.ref)).generation
        name = sandbox_name(self.uid, generation)
        request = SandboxRequest(
            name=name, key=sandbox_key(self.rig.secret.read_bytes(), name), volume=self.volume, max_processes=128
        )
        store, ref = self.rig.store, self.ref
        try:
            handle = await self.rig.sandboxes.create(request)
        except SandboxFailed as fault:
            await records.mark_lost(store, ref, epoch, name, fault.reason, fault.message, now=utc_now(), state="Failed")
            return None
        self.sandbox = name
        record = records.SandboxRecord(name, "Ready", handle.endpoint, "local", generation=generation)
        await records.mark_ready(store, ref, epoch, record, ms=0, start="cold", now=utc_now())
        return asyncio.create_task(self._tell_of_loss(name))

    async def _tell_of_loss(self, name: str) -> None:
        loss = await self.rig.sandboxes.wait_lost(name)
        while True:
            try:
                epoch = (await self.log.state()).epoch
                await records.mark_lost(self.rig.store, self.ref, epoch, name, loss.reason, loss.message, now=utc_now())
                return
            except (StoreUnavailable, Fenced):
                await asyncio.sleep(0.05)
            except LogClosed:
                return

    # -- the record --------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        if self.harness is not None:
            self.harness.kill()
            await self.harness.exited.wait()
        if self.gateways is not self.rig.gateway:
            await self.gateways.aclose()
        if getattr(self, "sandbox", ""):
            await self.rig.sandboxes.destroy(self.sandbox)

    async def _recorded(self) -> Recorded:
        log = await _through(self.log.all)
        replay = await _through(EventLog(self.rig.store, self.ref).all)
        return Recorded(
            log=log,
            replay=replay,
            seen=self.follower.seen,
            acknowledged=set(self._acknowledged()),
            posted=self.posted,
            effects=self.effects(),
            orders=self.orders,
        )

    def effects(self) -> list[str]:
        """What the commands have left behind so far."""
        path = self.volume / "workspace" / EFFECTS
        return path.read_text().split() if path.exists() else []

    def _acknowledged(self) -> Iterator[str]:
        """What the harnesses wrote down as appended, before they died."""
        for path in self.logs:
            yield from acknowledged(path.read_bytes().splitlines())

    def story(self) -> str:
        """For a person who looks into a violation."""
        lines = [*self.follower.story()]
        for path in (*self.logs, *(self.gateways.logs if self.gateways is not self.rig.gateway else ())):
            tail = path.read_text(errors="replace").splitlines()[-12:] if path.exists() else []
            lines += [f"-- {path.name}", *(line[:400] for line in tail)]
        return "\n".join(lines)


async def _through(ask: Callable[[], Awaitable[T]]) -> T:
    """Through absences of the store."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(0.05)


def kill_now(child: Child) -> None:
    """`kill -9`, from outside."""
    os.kill(child.pid, 9)
