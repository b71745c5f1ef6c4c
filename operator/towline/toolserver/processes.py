"""Starting, finding and ending the processes of one call, whatever they do to hide: setsid, double fork, `env -i`.

Called by `execute.py`. Every call starts under a *mark*, a value of RLIMIT_LOCKS (a limit that the kernel has not used
since Linux 2.4): children inherit it, and no unprivileged process can raise it again. This process is the subreaper, so
whatever is left of a call stays among its descendants; the mark says whose it is. It does not know what a call runs.
"""

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_RLIMIT_LOCKS = 10  # asm-generic/resource.h; the resource module does not name it

TERM_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
KILL_ROUNDS = 100
STOP_LOOKS = 3
"""At /proc in one round: what was born during the first is seen by the second."""
COUNT_SECONDS = 0.05
"""Between two counts of the sandbox's processes."""
PAUSE_SECONDS = 0.01
"""Between two looks at /proc: an orphan's end is reported to us, a grandchild's is not."""


class Marks:
    """Hands out marks: one less for each call, as a limit can only be lowered."""

    def __init__(self) -> None:
        hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
        ceiling = 1 << 62 if hard == resource.RLIM_INFINITY else hard
        # A random, far lower start keeps our marks apart from those of a tool server we might run under ourselves.
        self._next = ceiling - ((1 + int.from_bytes(os.urandom(3), "big")) << 32)

    def take(self) -> int | None:
        """A new mark. This process carries it until the next one is taken, so what it starts now inherits it.

        None where the kernel refuses (gVisor): then session and ancestry alone tell whose a process is.
        """
        self._next -= 1
        try:
            resource.setrlimit(_RLIMIT_LOCKS, (self._next, self._next))
        except (OSError, ValueError, OverflowError):
            return None
        return self._next


def mark_of(pid: int) -> int | None:
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[1]
    except OSError:  # gone, or another user's
        return None


@dataclass(frozen=True, slots=True)
class Seen:
    """One process as /proc showed it."""

    parent: int
    session: int
    alive: bool
    """False for a zombie, which cannot be killed, only reaped."""


def process_table() -> dict[int, Seen]:
    """Every process that can be seen. Not a snapshot: what starts or ends meanwhile may be missing."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    # The command's name is in parentheses and may hold anything, so the fields start after the last.
                    state, parent, _, session = file.read(4096).rpartition(b")")[2].split()[:4]
            except OSError:
                continue
            table[int(name)] = Seen(int(parent), int(session), state not in b"ZX")
    return table


@dataclass(eq=False, slots=True)
class Group:
    """The processes of one call."""

    leader: int
    mark: int | None
    exited: asyncio.Future[int]
    """Wait status of the first process."""
    crowded: asyncio.Future[None]
    """Done when this call has filled the sandbox with processes and must end."""


class Processes:
    """All children of this process: reaps each, ours and the orphans that came to us, and keeps the calls apart."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int | None) -> None:
        self._loop = loop
        self._marks = Marks()
        self._groups: dict[int, Group] = {}
        # RLIMIT_NPROC does this better, but the kernel exempts the host's root, also inside a user namespace. Only as
        # the first process do we know that whatever runs here is ours.
        self._most = most if os.getpid() == 1 else None
        self._counting: asyncio.TimerHandle | None = None
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def start(self, spawn: Callable[[], int]) -> Group:
        """Start a call's first process by `spawn`, which returns its pid."""
        mark = self._marks.take()
        leader = spawn()
        group = Group(leader, mark, self._loop.create_future(), self._loop.create_future())
        self._groups[leader] = group
        if self._most is not None and self._counting is None:
            self._counting = self._loop.call_later(COUNT_SECONDS, self._count, self._most)
        return group

    def forget(self, group: Group) -> None:
        """The call is over and swept."""
        self._groups.pop(group.leader, None)

    def _count(self, most: int) -> None:
        """While calls run: pick the largest to be ended when there are more processes than may be."""
        self._counting = None
        if not self._groups:
            return
        self._counting = self._loop.call_later(COUNT_SECONDS, self._count, most)
        if any(group.crowded.done() for group in self._groups.values()):
            return
        if sum(name.isdigit() for name in os.listdir("/proc")) > most + 1:
            # Nothing may run until `kill` is done: a bomb that grows takes the processor away from us.
            _send((-1,), signal.SIGSTOP)
            largest = max(self._groups.values(), key=lambda group: len(self.members(group)))
            largest.crowded.set_result(None)

    def reap(self) -> bool:
        """Collect the children that have ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            group = self._groups.get(pid)
            if group is not None and not group.exited.done():
                group.exited.set_result(status)

    def members(self, group: Group) -> list[int]:
        """The living processes of a call, parents before their children."""
        table, alone = process_table(), len(self._groups) == 1
        children: dict[int, list[int]] = {}
        for pid, seen in table.items():
            children.setdefault(seen.parent, []).append(pid)
        found = []
        below = [(pid, alone) for pid in children.get(os.getpid(), [])]
        while below:
            pid, inside = below.pop()
            # Alone, everything is this call's: also a process that lowered its mark on purpose.
            inside = inside or group.leader in (pid, table[pid].session) or _marked(pid, group)
            if inside and table[pid].alive:
                found.append(pid)
            below += [(child, inside) for child in children.get(pid, [])]
        return found

    async def terminate(self, group: Group) -> None:
        """SIGTERM to all of a call, and SIGKILL to what is left of it after TERM_SECONDS.

        Parents first: a shell whose command died before it got its own signal would go on with the next command.
        """
        _send(self.members(group), signal.SIGTERM)
        deadline = self._loop.time() + TERM_SECONDS
        ends = (group.exited, group.crowded)
        await asyncio.wait(ends, timeout=TERM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        while self.reap() and self.members(group):
            if self._loop.time() >= deadline or group.crowded.done():
                await self.kill(group)
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def kill(self, group: Group) -> int:
        """Kill what is left of a call, for a second at most; returns how many processes there were.

        They are stopped before they are killed. If more came after the first round, the whole sandbox is stopped until
        the call is gone: a fork bomb refills itself faster than /proc can be read, and a fork that has begun is still
        completed. Not before, as some programs of other calls notice that they were stopped (EINTR).
        """
        killed: set[int] = set()
        quiet, refilled = 0, False
        try:
            for attempt in range(KILL_ROUNDS):
                if refilled or group.crowded.done():
                    _send((-1,), signal.SIGSTOP)
                found = self._stop(group)
                _send(found, signal.SIGKILL)
                killed |= found
                # Only as first process is everything that we may signal ours.
                refilled = refilled or (bool(found) and attempt > 0 and os.getpid() == 1)
                if not self.reap():
                    break
                # Children are left: other calls', or one that slipped through if there is no other call.
                quiet = 0 if found or len(self._groups) == 1 else quiet + 1
                if quiet and (not killed or quiet > 2):
                    break
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            if refilled or group.crowded.done():
                _send((-1,), signal.SIGCONT)
        return len(killed)

    def _stop(self, group: Group) -> set[int]:
        """Stop and return a call's processes; unless all were stopped before, some may be missed."""
        stopped: set[int] = set()
        for _ in range(STOP_LOOKS):
            fresh = set(self.members(group)) - stopped
            if not fresh:
                break
            _send(fresh, signal.SIGSTOP)
            stopped |= fresh
        return stopped


def _marked(pid: int, group: Group) -> bool:
    return group.mark is not None and mark_of(pid) == group.mark


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or another user's: not ours to end
            pass
