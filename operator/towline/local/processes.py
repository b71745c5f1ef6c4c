"""Child processes of the launcher: started with an explicit environment, watched through a pidfd, ended within a bound.

Called by `valkey.py` and `launcher.py`. Every child leads a session of its own (a terminal's Ctrl-C reaches the
launcher alone) and carries a parent-death signal, so that a launcher killed with -9 leaves none of them behind.
It restarts nothing: that is a decision, and `plan.py` makes it.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)

TAIL_BYTES = 4_000  # enough for a traceback, short enough for a terminal


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit code, or the signal that ended it."""

    code: int | None
    signal: int | None = None

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"


def _die_with_parent() -> None:
    """Runs in the child between fork and exec. The kernel ties the signal to the *thread* that forked: the main one."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Child:
    """One running program. `exited` is set once it has ended and everything left of its process group is killed."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path, on_exit: Callable[[], None]) -> None:
        self.name, self.log = name, log
        self.exit: Exit | None = None
        self.exited = asyncio.Event()
        self._process, self._on_exit = process, on_exit
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self.exit is None

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # The leader is still a zombie here, so the group's id cannot belong to anybody else yet.
        self._signal_group(signal.SIGKILL)
        code = self._process.wait()
        self.exit = Exit(None, -code) if code < 0 else Exit(code)
        self.exited.set()
        self._on_exit()

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def kill(self) -> None:
        """Ends the whole group at once; does nothing when it has ended."""
        if self.running:
            self._signal_group(signal.SIGKILL)

    async def stop(self, grace_seconds: float) -> Exit:
        """SIGTERM, then after `grace_seconds` SIGKILL; returns how it ended. May be called twice."""
        if self.running:
            self._signal_group(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.exited.wait(), grace_seconds)
            except TimeoutError:
                self.kill()
        await self.exited.wait()
        assert self.exit is not None
        return self.exit

    def tail(self) -> str:
        """The end of what it wrote, for an error message."""
        return tail_of(self.log)


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    log: Path,
    folder: Path,
    pass_fds: Iterable[int] = (),
    on_exit: Callable[[], None] = lambda: None,
) -> Child:
    """Starts `command` in `folder` with exactly `environment`; its stdout and stderr are appended to `log`.

    Raises OSError when the program cannot be started. Call it from the main thread, inside a running loop.
    """
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - an explicit command line, no shell
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd=folder,
            pass_fds=tuple(pass_fds),
            start_new_session=True,
            # The child runs one prebound system call here; nothing that could wait for a lock of another thread.
            preexec_fn=_die_with_parent,
        )
    return Child(name, process, log, on_exit)


def python_module(module: str) -> list[str]:
    """Command line that runs one of our modules in this interpreter; -P keeps the user's folder off the import path."""
    return [sys.executable, "-P", "-m", module]


def tail_of(log: Path) -> str:
    """The last lines of a file, empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
