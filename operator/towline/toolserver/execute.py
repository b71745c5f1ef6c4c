"""Runs a command, or a forked worker, for one call: bounded output, bounded time, and nothing left behind.

Called by `tools.py`. It waits for the first process to exit, never for the pipe to close: a daemon may hold that for
ever. It does not decide what may run.
"""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping

from .capture import Capture
from .processes import Group, Processes
from .result import Result, ToolFault

SHELL = "/bin/sh"
GRACE_SECONDS = 0.2
"""How long background processes may still write after the command itself has ended."""
READ_BYTES = 64 * 1024
DRAIN_READS = 64
"""Reads after everything was killed: what was in the pipe, even if a stranger keeps it open and writes on."""


def shell() -> str | None:
    """The image's shell; None when it has none."""
    return SHELL if os.access(SHELL, os.X_OK) else None


class Pipe:
    """The read end of a call's output; takes one chunk per turn of the event loop, so that timers stay on time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_end: int, sink: Callable[[bytes], None]) -> None:
        os.set_blocking(read_end, False)
        self._loop, self._fd, self._sink = loop, read_end, sink
        self.ended = asyncio.Event()
        loop.add_reader(read_end, self.read)

    def read(self) -> bool:
        """Take one chunk; whether there was one."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._fd)
            self.ended.set()
            return False
        self._sink(data)
        return True

    def close(self) -> None:
        """Take what is in the pipe now, and close it."""
        reads = 0
        while not self.ended.is_set() and reads < DRAIN_READS and self.read():
            reads += 1
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class Executor:
    """Starts the processes of calls. One per tool server."""

    def __init__(self, processes: Processes, environment: Mapping[str, str]) -> None:
        self._processes = processes
        self._environment = dict(environment)
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    async def command(
        self,
        command: str,
        folder: int,
        seconds: float,
        cancelled: asyncio.Future[None],
        output: Callable[[bytes], None],
    ) -> Result:
        """Run `command` by the shell with the open directory `folder` as its working directory."""
        if shell() is None:
            raise ToolFault("NoShell", f"this sandbox's image has no {SHELL}; only the file tools work here")

        def spawn(write_end: int) -> int:
            # posix_spawn has no argument for it. Nothing else here depends on the working directory.
            os.fchdir(folder)
            return os.posix_spawn(
                SHELL,
                [SHELL, "-c", command],
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, self._null, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                    (os.POSIX_SPAWN_DUP2, write_end, 2),
                ],
                setsid=True,
                setsigmask=[],
                # Python ignores these two, and an ignored signal would stay ignored in the command.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )

        return await self._run(spawn, seconds, cancelled, output)

    async def worker(
        self, work: Callable[[int, int], int], folder: int, seconds: float, cancelled: asyncio.Future[None]
    ) -> Result:
        """Run `work(folder, output)` in a forked child: it may take any time, and Python code cannot be interrupted.

        Both arguments are open descriptors, what it returns is its exit status. The child has a copy of our memory and,
        like us, is closed to others.
        """

        def spawn(write_end: int) -> int:
            pid = os.fork()
            if pid == 0:
                _become_worker(work, folder, write_end)
            return pid

        return await self._run(spawn, seconds, cancelled, _nobody)

    async def _run(
        self,
        spawn: Callable[[int], int],
        seconds: float,
        cancelled: asyncio.Future[None],
        output: Callable[[bytes], None],
    ) -> Result:
        loop, started, capture = asyncio.get_running_loop(), time.monotonic(), Capture()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            group = self._processes.start(lambda: spawn(write_end))
        except OSError as fault:
            os.close(read_end)
            raise _start_fault(fault) from fault
        finally:
            os.close(write_end)

        def sink(data: bytes) -> None:
            capture.add(data)
            output(data)

        pipe = Pipe(loop, read_end, sink)
        code: str | None = None
        cut_short = False
        try:
            ends = (group.exited, cancelled, group.crowded)
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if group.crowded.done():
                code = "TooManyProcesses"
                await self._processes.kill(group)
            elif not group.exited.done():
                cut_short = True
                code = None if cancelled.done() else "TimedOut"
                await self._processes.terminate(group)
            killed = await self._sweep(group, pipe)
        finally:
            pipe.close()
            self._processes.forget(group)
        status = os.waitstatus_to_exitcode(group.exited.result()) if group.exited.done() else None
        return Result(
            outcome="error" if code is not None else "cancelled" if cut_short else "ok",
            text=capture.text() + ("\n[ended: too many processes]\n" if code == "TooManyProcesses" else ""),
            total_bytes=capture.total,
            truncated=capture.truncated,
            exit_code=status if status is not None and status >= 0 else None,
            signal=-status if status is not None and status < 0 else None,
            timed_out=code == "TimedOut",
            duration_ms=round((time.monotonic() - started) * 1000),
            killed=killed,
            code=code,
        )

    async def _sweep(self, group: Group, pipe: Pipe) -> int:
        """Leave background processes a moment to write, then kill what is left of the call."""
        if not self._processes.reap():
            return 0
        if not pipe.ended.is_set():
            try:
                async with asyncio.timeout(GRACE_SECONDS):
                    await pipe.ended.wait()
            except TimeoutError:
                pass
        return await self._processes.kill(group)


def _nobody(_: bytes) -> None:
    """Live output that is not wanted."""


def _start_fault(fault: OSError) -> ToolFault:
    if isinstance(fault, BlockingIOError):
        return ToolFault("TooManyProcesses", "no further process may start in this sandbox; end some first")
    return ToolFault("SpawnFailed", f"the process could not be started: {fault.strerror}")


def _become_worker(work: Callable[[int, int], int], folder: int, write_end: int) -> None:
    """In the forked child: keep two descriptors, no connection and no listener; never return."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(write_end, 1)
        os.dup2(folder, 0)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        status = work(0, 1)
    finally:
        os._exit(status)
