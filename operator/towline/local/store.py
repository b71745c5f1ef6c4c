"""The store folder of local mode, its lock, and the Valkey that serves it.

    lock              who has it (verb, pid, socket, run); held by flock, so a dead owner never blocks
    valkey/           the event store's append-only file
    secret            the installation secret, from which the sandboxes' keys are derived
    workspaces/UID/   the volume of a run's sandbox: workspace/, home/, tmp/
    logs/             what the processes wrote: valkey.log, UID/*.log

Called by the launcher (`owned`) and by `here.py` for the other verbs (`opened`, `joined`). Which runs it holds is read
from the event store; no second index exists.
"""

import asyncio
import fcntl
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from towline.errors import Invalid, StoreUnavailable
from towline.events.store import Store
from towline.local.faults import MachineCannot, StoreInUse
from towline.local.processes import Child
from towline.local.runtime import runtime_folder, write_secret
from towline.local.valkey import server_binary, start_valkey

STOP_SECONDS = 1.5  # an idle Valkey ends within some 20 ms; a large append-only file is flushed in this time
PATIENCE_SECONDS = 0.5  # we are the one who restarts a dead server, so waiting for it would be in vain
CONNECT_SECONDS = 10.0  # a reader waits for a store that its owner is just starting, a launcher for those who read
LOOK_AGAIN_SECONDS = 0.05
READERS_SECONDS = 2.0  # how long a store that nobody keeps stays for those who still read it


UNKEPT, READERS = "store", "readers"
"""In the runtime folder of a launcher that keeps nothing: its store, and a lock shared by those who read it."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where things lie in a store."""

    path: Path

    @property
    def valkey(self) -> Path:
        return self.path / "valkey"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def valkey_log(self) -> Path:
        return self.path / "logs" / "valkey.log"

    def volume(self, uid: str) -> Path:
        """What becomes the sandbox's /sandbox."""
        return self.path / "workspaces" / uid

    def logs(self, uid: str) -> Path:
        return self.path / "logs" / uid

    def installation_secret(self) -> Path:
        """File with the installation secret; made at the first call."""
        secret = self.path / "secret"
        return secret if secret.exists() else write_secret(secret, secrets.token_hex(32).encode())


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a store: what the lock file says."""

    verb: str
    pid: int
    socket: str
    uid: str = ""
    """The run that is being executed, for `towline run`; empty for whoever only reads, which is soon over."""
    asleep: bool = False
    """That run waits for a prompt without a harness."""


@dataclass(slots=True)
class OwnedStore:
    """A store that this process holds. `valkey` is replaced when the server had to be started again."""

    folder: Folder
    runtime: Path
    url: str
    store: Store
    valkey: Child
    lock: int
    holder: Holder

    def say_asleep(self, asleep: bool) -> None:
        """Tells whoever looks at the lock whether the run sleeps: of that, the event store knows nothing."""
        if asleep != self.holder.asleep:
            self.holder = replace(self.holder, asleep=asleep)
            _write_holder(self.lock, self.holder)

    async def restart(self, on_exit: Callable[[], None]) -> None:
        """Starts the server again on the same data and socket, after it died."""
        self.valkey = await start_valkey(
            server_binary(),
            data=self.folder.valkey,
            socket=Path(self.url.removeprefix("unix://")),
            log=self.folder.valkey_log,
            on_exit=on_exit,
        )


def exists(path: Path) -> bool:
    """Whether there is a store in this folder."""
    return Folder(path).lock.exists()


def take_lock(folder: Folder, holder: Holder) -> int:
    """Takes the store for this process; the returned descriptor is the lock. Raises StoreInUse."""
    descriptor = os.open(folder.lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        other = recorded_holder(folder)
        raise StoreInUse(folder.path, other.verb if other else "run", other.pid if other else 0) from None
    _write_holder(descriptor, holder)
    return descriptor


async def _taken_lock(folder: Folder, holder: Holder) -> int:
    """The store for this process: a launcher waits until those who read it are gone. Raises StoreInUse."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return take_lock(folder, holder)
        except StoreInUse:
            other = recorded_holder(folder)
            if not holder.uid or (other is not None and other.uid) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _write_holder(lock: int, holder: Holder) -> None:
    text = json.dumps(asdict(holder)).encode()
    os.pwrite(lock, text, 0)
    os.ftruncate(lock, len(text))


def recorded_holder(folder: Folder) -> Holder | None:
    """What the lock file says; None while its owner is writing it. Only true while the lock is held."""
    try:
        return Holder(**json.loads(folder.lock.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


@asynccontextmanager
async def owned(
    path: Path | None, *, verb: str, uid: str = "", on_exit: Callable[[], None] = lambda: None
) -> AsyncIterator[OwnedStore]:
    """Holds the store at `path` and serves it; None: a store that lasts as long as the context.

    With a `uid`, it waits for those who read the store. Raises StoreInUse, or MachineCannot when the server does not
    start. `on_exit` is called when the server dies.
    """
    with runtime_folder() as runtime:
        folder = Folder(path or runtime / UNKEPT)
        try:
            folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.valkey_log.parent.mkdir(exist_ok=True, mode=0o700)
        except OSError as fault:
            raise MachineCannot(f"the store {folder.path} cannot be made: {fault.strerror}") from fault
        socket = runtime / "valkey.sock"
        holder = Holder(verb, os.getpid(), str(socket), uid)
        lock = await _taken_lock(folder, holder)
        try:
            child = await start_valkey(
                server_binary(), data=folder.valkey, socket=socket, log=folder.valkey_log, on_exit=on_exit
            )
            url = f"unix://{socket}"
            store = Store.connect(url, patience_seconds=PATIENCE_SECONDS)
            held = OwnedStore(folder, runtime, url, store, child, lock, holder)
            try:
                yield held
            finally:
                await held.store.aclose()
                if path is None:
                    await _until_read(runtime)
                    held.valkey.kill()
                await held.valkey.stop(STOP_SECONDS)
        finally:
            os.ftruncate(lock, 0)
            os.close(lock)


@asynccontextmanager
async def opened(path: Path, *, verb: str) -> AsyncIterator[tuple[Store, Holder | None]]:
    """The store at `path` for reading: through its holder's server, or served by us while we read.

    Raises Invalid when there is no store. The holder may end at any time; reads then raise StoreUnavailable, and the
    caller may open it anew.
    """
    folder = Folder(path)
    if not exists(path):
        raise Invalid(f"no kept runs in {path}: keep one with `towline run --keep`, or name its store with --store DIR")
    deadline = time.monotonic() + CONNECT_SECONDS
    async with AsyncExitStack() as stack:
        while True:
            try:
                held = await stack.enter_async_context(owned(path, verb=verb))
            except StoreInUse:
                if time.monotonic() > deadline:
                    raise
            else:
                yield held.store, None
                return
            holder = recorded_holder(folder)
            store = await _answering(holder)
            if store is not None:
                stack.push_async_callback(store.aclose)
                yield store, holder
                return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


@asynccontextmanager
async def joined(runtime: Path) -> AsyncIterator[tuple[Store | None, Holder | None]]:
    """The store of a launcher at work that keeps nothing, and its holder.

    Without a holder it keeps one, or has ended; with a holder alone, its store does not answer now. The launcher's end
    waits a moment for whoever is in here, so that a follower sees the run's last event.
    """
    holder = recorded_holder(Folder(runtime / UNKEPT))
    store = await _answering(holder)
    if store is None:
        yield None, holder
        return
    try:
        with _reading(runtime):
            yield store, holder
    finally:
        await store.aclose()


@contextmanager
def _reading(runtime: Path) -> Iterator[None]:
    try:
        readers = os.open(runtime / READERS, os.O_CREAT | os.O_RDWR, 0o600)
    except FileNotFoundError:  # it ended between our two looks
        yield
        return
    try:
        fcntl.flock(readers, fcntl.LOCK_SH)
        yield
    finally:
        os.close(readers)


async def _until_read(runtime: Path) -> None:
    readers = os.open(runtime / READERS, os.O_CREAT | os.O_RDWR, 0o600)
    deadline = time.monotonic() + READERS_SECONDS
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(readers, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                await asyncio.sleep(0.02)
    finally:
        os.close(readers)


async def _answering(holder: Holder | None) -> Store | None:
    if holder is None:
        return None
    store = Store.connect(f"unix://{holder.socket}")
    try:
        await store.ping()
    except StoreUnavailable:
        await store.aclose()
        return None
    return store
