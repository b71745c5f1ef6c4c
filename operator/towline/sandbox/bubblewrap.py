"""Sandboxes on this machine, by bubblewrap: own user, process, network and mount namespaces, and no network at all.

Called by the local launcher, as an ordinary user or as root. There is no fallback without namespaces: where they cannot
be made, `preflight` says what to change. What is inside is decided in `mounts.py`; `bwrap.py` holds one process.
"""

import asyncio
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from towline.errors import SandboxFailed
from towline.sandbox.bundle import MOUNT, Bundle
from towline.sandbox.bwrap import Bwrap, bwrap_path
from towline.sandbox.guest import read_answer
from towline.sandbox.mounts import ETC, environment, files, namespaces
from towline.sandbox.provider import Loss, SandboxHandle, SandboxRequest

START_SECONDS = 10.0
"""From the start of bubblewrap until the tool server answers; usually 0.1 s."""
PREFLIGHT_SECONDS = 10.0
SOCKET_PATH_LIMIT = 107
"""Bytes of a unix socket's path (sun_path without its NUL)."""
BACKLOG = 128
CANNOT_RUN = 127
"""Exit status of a program whose own libraries are missing."""

USERNS_ADVICE = (
    "bubblewrap cannot make namespaces on this machine, and towline runs no command without them. "
    "On the host: sysctl -w user.max_user_namespaces=15000; on Debian and older Ubuntu also "
    "sysctl -w kernel.unprivileged_userns_clone=1; on Ubuntu 23.10 and later "
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0. In a container: --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined."
)


@dataclass(slots=True, eq=False)
class _Sandbox:
    """One name; `running` is its current process, or the last one."""

    request: SandboxRequest
    socket_path: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: Bwrap | None = None
    ended_by_us: Loss | None = None

    @property
    def alive(self) -> bool:
        return self.running is not None and not self.running.ended.done()

    @property
    def handle(self) -> SandboxHandle:
        return SandboxHandle(self.request.name, f"unix:{self.socket_path}")


class LocalSandbox:
    """The `bubblewrap` SandboxProvider.

    `runtime_dir` is a short path, made with mode 0700, for the sockets. Call `aclose` at the end; when this process
    dies without it, at whatever moment, its sandboxes end by themselves.
    """

    def __init__(self, bundle: Bundle, runtime_dir: Path, *, bwrap: str | None = None) -> None:
        self._bundle, self._runtime_dir, self._bwrap = bundle, runtime_dir, bwrap
        self._sandboxes: dict[str, _Sandbox] = {}
        self._namespaces: list[str] | None = None
        self._preflight = asyncio.Lock()

    async def aclose(self) -> None:
        """Destroy every sandbox."""
        await asyncio.gather(*(self.destroy(name) for name in list(self._sandboxes)))

    async def preflight(self) -> None:
        """Start a sandbox that does nothing; asks once, then knows.

        Raises SandboxFailed: BubblewrapMissing, UserNamespacesUnavailable, BadRuntimeDir.
        """
        async with self._preflight:
            if self._namespaces is not None:
                return
            self._prepare_runtime_dir()
            said = ""
            # Not every kernel lets us forbid further user namespaces inside; everything else must work.
            for flags in (namespaces(nested=False), namespaces(nested=True)):
                status, said = await self._try(flags)
                if status == 0:
                    self._namespaces = flags
                    return
                if status == CANNOT_RUN:
                    raise SandboxFailed("BubblewrapMissing", f"{self._program()} cannot run: {said}")
            raise SandboxFailed("UserNamespacesUnavailable", f"{USERNS_ADVICE} bubblewrap said: {said}")

    async def create(self, request: SandboxRequest) -> SandboxHandle:
        sandbox = self._sandboxes.get(request.name)
        if sandbox is None:
            sandbox = self._sandboxes[request.name] = _Sandbox(request, self._socket_path(request.name))
        elif sandbox.request != request:
            raise SandboxFailed("NameTaken", f"sandbox {request.name} exists and was requested differently")
        return await self._ensure(sandbox)

    async def endpoint(self, name: str) -> str:
        sandbox = self._known(name)
        if not sandbox.alive:
            raise SandboxFailed("Unknown", f"sandbox {name} is not alive")
        return sandbox.handle.endpoint

    async def suspend(self, name: str) -> None:
        sandbox = self._known(name)
        async with sandbox.lock:
            await _end(sandbox, Loss("Suspended", f"sandbox {name} was suspended"))

    async def resume(self, name: str) -> SandboxHandle:
        return await self._ensure(self._known(name))

    async def destroy(self, name: str) -> None:
        sandbox = self._sandboxes.get(name)
        if sandbox is None:
            return
        async with sandbox.lock:
            await _end(sandbox, Loss("Destroyed", f"sandbox {name} was destroyed"))
            if self._sandboxes.get(name) is sandbox:
                del self._sandboxes[name]

    async def wait_lost(self, name: str) -> Loss:
        sandbox = self._sandboxes.get(name)
        if sandbox is None or sandbox.running is None:
            return Loss("Unknown", f"there is no sandbox {name}")
        running = sandbox.running
        status = await asyncio.shield(running.ended)
        if sandbox.ended_by_us is not None and sandbox.running is running:
            return sandbox.ended_by_us
        if status > 128:
            return Loss("Killed", f"the first process of sandbox {name} was killed by signal {status - 128}")
        return Loss("Exited", f"the tool server of sandbox {name} ended with status {status}: {running.said}")

    def first_process(self, name: str) -> int:
        """Process id, as seen from here, of a living sandbox's tool server; for diagnosis and tests."""
        sandbox = self._known(name)
        return sandbox.running.init_pid if sandbox.running is not None else 0

    def _known(self, name: str) -> _Sandbox:
        sandbox = self._sandboxes.get(name)
        if sandbox is None:
            raise SandboxFailed("Unknown", f"there is no sandbox {name}")
        return sandbox

    async def _ensure(self, sandbox: _Sandbox) -> SandboxHandle:
        async with sandbox.lock:
            if self._sandboxes.get(sandbox.request.name) is not sandbox:
                raise SandboxFailed("Unknown", f"sandbox {sandbox.request.name} was destroyed meanwhile")
            if not sandbox.alive:
                never_ran = sandbox.running is None
                try:
                    await self.preflight()
                    await self._start(sandbox)
                except BaseException:
                    if never_ran:
                        del self._sandboxes[sandbox.request.name]
                    raise
            return sandbox.handle

    async def _start(self, sandbox: _Sandbox) -> None:
        request = sandbox.request
        try:
            running = await self._launch(request, sandbox.socket_path)
        except BaseException as fault:
            sandbox.socket_path.unlink(missing_ok=True)
            if isinstance(fault, OSError):
                raise SandboxFailed("StartFailed", f"sandbox {request.name} did not start: {fault}") from fault
            raise
        sandbox.running, sandbox.ended_by_us = running, None
        try:
            async with asyncio.timeout(START_SECONDS):
                await _answered(sandbox.socket_path)
            running.learn_init()
        except (TimeoutError, OSError, EOFError) as fault:
            await _end(sandbox, Loss("StartFailed", "the tool server did not answer"))
            said = running.said or f"no answer ({type(fault).__name__})"
            raise SandboxFailed("StartFailed", f"sandbox {request.name} did not start: {said}") from fault
        except BaseException:
            await asyncio.shield(_end(sandbox, Loss("StartFailed", "its creation was cancelled")))
            raise

    async def _launch(self, request: SandboxRequest, socket_path: Path) -> Bwrap:
        assert self._namespaces is not None
        if request.volume is not None:
            request.volume.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = [*self._namespaces, *files(request, self._bundle, self._runtime_dir / "etc")]
        # Made here and handed down: inside, there is no path by which the socket could be found.
        with _listener(socket_path) as listener:
            variables = environment(request, listener.fileno())
            return await Bwrap.start(self._program(), options, self._bundle.command(), variables, (listener.fileno(),))

    async def _try(self, flags: list[str]) -> tuple[int, str]:
        """Exit status of an empty sandbox of these flags, and what bubblewrap said."""
        options = [*flags, "--proc", "/proc", "--dev", "/dev", "--ro-bind", str(self._bundle.folder), str(MOUNT)]
        nothing = [*self._bundle.command()[:-2], "-c", ""]
        trial = await Bwrap.start(self._program(), options, nothing, {})
        await asyncio.wait((trial.ended,), timeout=PREFLIGHT_SECONDS)
        await trial.kill()
        return trial.ended.result() if trial.ended.done() else 1, trial.said

    def _program(self) -> str:
        return self._bwrap or bwrap_path()

    def _socket_path(self, name: str) -> Path:
        path = self._runtime_dir / f"{name}.sock"
        if "/" in name or len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
            raise SandboxFailed(
                "BadName", f"{path} is no socket path: at most {SOCKET_PATH_LIMIT} bytes, no / in a name"
            )
        return path

    def _prepare_runtime_dir(self) -> None:
        etc = self._runtime_dir / "etc"
        try:
            self._runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._runtime_dir.stat().st_uid != os.getuid():
                raise PermissionError("it belongs to another user")
            self._runtime_dir.chmod(0o700)
            etc.mkdir(exist_ok=True)
            for name, text in ETC.items():
                (etc / name).write_text(text)
        except OSError as fault:
            raise SandboxFailed("BadRuntimeDir", f"{self._runtime_dir} cannot be used for sockets: {fault}") from fault


async def _end(sandbox: _Sandbox, why: Loss) -> None:
    """End what runs under a name, and take its address away."""
    if sandbox.alive:
        assert sandbox.running is not None
        sandbox.ended_by_us = why
        await sandbox.running.kill()
    sandbox.socket_path.unlink(missing_ok=True)


async def _answered(path: Path) -> None:
    """Return once the tool server answers. Raises OSError or EOFError when it ends instead."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(b"GET /v1/health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n")
        await read_answer(reader)
    finally:
        writer.close()


def _listener(path: Path) -> socket.socket:
    """A listening socket at `path`, in place of one that a dead sandbox left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
