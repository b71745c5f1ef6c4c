"""The sandboxes of one run: started one after the other, watched, recorded for the gateway, destroyed.

Called by `supervise.py`, which decides when. The interpreter bundle is built, and bubblewrap tried, only when a sandbox
is wanted: a run that uses no tool pays for neither, and needs no user namespaces.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from towline.api.snapshot import Snapshot
from towline.clock import utc_now
from towline.errors import Fenced, LogClosed, SandboxFailed, StoreUnavailable
from towline.events import sandbox as record
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.local.feed import publish_deleted
from towline.local.plan import SandboxSeen
from towline.local.runtime import remove_folder
from towline.local.store import OwnedStore
from towline.local.watch import Viewer
from towline.naming import sandbox_key, sandbox_name
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import build_bundle
from towline.sandbox.provider import SandboxHandle, SandboxRequest

PROVIDER = "local"
IMPOSSIBLE = ("UserNamespacesUnavailable", "BubblewrapMissing", "BundleFailed", "BadRuntimeDir")
"""Faults of the machine: no later sandbox of this run would fare better."""

NOTE_AFTER_SECONDS = 0.3  # a bundle from the cache is there at once; building one takes seconds, which a person is told
RECORD_SECONDS = 5.0


class Sandboxes:
    """At most one sandbox at a time; each has a name of its own, and they share the run's workspace."""

    def __init__(
        self,
        snapshot: Snapshot,
        run: RunRef,
        held: OwnedStore,
        *,
        cache: Path,
        viewer: Viewer,
        poke: Callable[[], None],
    ) -> None:
        self._seen: SandboxSeen | None = None
        self._snapshot, self._run, self._held = snapshot, run, held
        self._cache, self._viewer, self._poke = cache, viewer, poke
        self._provider: LocalSandbox | None = None
        self._work: asyncio.Task[None] | None = None
        self._generation = 0
        self._address = ""
        self._failure = SandboxFailed("", "")
        self._wanted_at = 0.0
        self._milliseconds = 0

    @property
    def seen(self) -> SandboxSeen | None:
        """The sandbox started last. Raises what its task did not expect."""
        if self._work is not None and self._work.done() and not self._work.cancelled():
            self._work.result()
        return self._seen

    async def given_up(self) -> bool:
        """Whether the record asks for another sandbox than the one that lives."""
        if self._seen is None or self._seen.state != "Started":
            return False
        return (await record.read(self._held.store, self._run)).generation > self._generation

    async def create(self) -> None:
        """Begins to make the next sandbox; `seen` tells how it goes. The one before it is ended if it lives."""
        if self._seen is not None and self._seen.state == "Started" and self._provider is not None:
            await self._end_work()
            await self._provider.destroy(self._seen.name)
        wanted = (await record.read(self._held.store, self._run)).generation
        self._generation = max(wanted, self._generation + 1)
        name = sandbox_name(self._run.uid, self._generation)
        self._seen = SandboxSeen(name=name, state="Starting", recorded=False)
        self._wanted_at = time.monotonic()
        self._work = asyncio.create_task(self._live(self._seen))
        self._work.add_done_callback(lambda _: self._poke())

    async def record(self) -> None:
        """Writes into the run's record what `seen` says, once."""
        seen = self._seen
        if seen is None:
            return
        store, run, now = self._held.store, self._run, utc_now()
        epoch = (await EventLog(store, run).state()).epoch
        if seen.state == "Started":
            ready = record.SandboxRecord(seen.name, "Ready", self._address, PROVIDER, generation=self._generation)
            await record.mark_ready(store, run, epoch, ready, ms=self._milliseconds, start="cold", now=now)
        else:
            state = "Lost" if seen.state == "Dead" else "Failed"
            fault = self._failure
            about = (store, run, epoch, seen.name, fault.reason, fault.message)
            await record.mark_lost(*about, now=now, state=state, generation=self._generation)
        if self._seen is seen:
            self._seen = replace(seen, recorded=True)

    def tell_again(self) -> None:
        """The store may have lost what `record` wrote."""
        if self._seen is not None:
            self._seen = replace(self._seen, recorded=False)

    async def release(self) -> None:
        """Ends the sandbox of a run that sleeps, and records it; the workspace stays if the run says so. Repeatable."""
        seen = self._seen
        if seen is None:
            return
        await self._end_work()
        if self._provider is not None:
            await self._provider.destroy(seen.name)
        keep = self._snapshot.sandbox.retain == "Suspend"
        if not keep:
            await asyncio.to_thread(remove_folder, self._held.folder.volume(self._run.uid))
        store, run, now = self._held.store, self._run, utc_now()
        epoch = (await EventLog(store, run).state()).epoch
        await (record.mark_suspended if keep else record.mark_deleted)(store, run, epoch, seen.name, now=now)
        self._seen = None

    async def _end_work(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._work = None

    async def destroy(self) -> None:
        """Ends whatever runs, and records it: to the feed alone, since the run is over."""
        await self._end_work()
        if self._provider is not None:
            await self._provider.aclose()
        if self._seen is not None and self._seen.state == "Started":
            try:
                async with asyncio.timeout(RECORD_SECONDS):
                    await self._record_deleted(self._seen.name)
            except (StoreUnavailable, Fenced, LogClosed, TimeoutError):
                pass  # the record of a finished run; nobody waits for it

    async def _record_deleted(self, name: str) -> None:
        store, run, now = self._held.store, self._run, utc_now()
        epoch = (await EventLog(store, run).state()).epoch
        await record.mark_deleted(store, run, epoch, name, now=now)
        await publish_deleted(store, run, name, epoch, now=now)

    # -- the life of one sandbox -------------------------------------------------------------------------------------

    async def _live(self, seen: SandboxSeen) -> None:
        """From its start to its end."""
        try:
            provider = await self._ready_provider()
            handle = await self._start(provider, seen.name)
        except SandboxFailed as fault:
            self._failure = fault
            impossible = fault.reason in IMPOSSIBLE
            self._change(replace(seen, state="Impossible" if impossible else "Failed", message=fault.message))
            return
        self._address = handle.endpoint
        self._milliseconds = round((time.monotonic() - self._wanted_at) * 1000)
        self._change(replace(seen, state="Started"))
        loss = await provider.wait_lost(seen.name)
        self._failure = SandboxFailed(loss.reason, loss.message)
        self._change(replace(seen, state="Dead"))

    def _change(self, seen: SandboxSeen) -> None:
        self._seen = seen
        self._poke()

    async def _ready_provider(self) -> LocalSandbox:
        if self._provider is None:
            building = asyncio.create_task(asyncio.to_thread(build_bundle, self._cache))
            done, _ = await asyncio.wait([building], timeout=NOTE_AFTER_SECONDS)
            if not done:
                self._viewer.note("building the sandbox's interpreter, once for this machine …")
            self._provider = LocalSandbox(await building, self._held.runtime / "s")
        return self._provider

    async def _start(self, provider: LocalSandbox, name: str) -> SandboxHandle:
        secret = self._held.folder.installation_secret().read_bytes()
        sandbox = self._snapshot.sandbox
        request = SandboxRequest(
            name=name,
            key=sandbox_key(secret, name),
            volume=self._held.folder.volume(self._run.uid),
            image=sandbox.image,
            max_processes=sandbox.max_processes,
        )
        return await provider.create(request)
