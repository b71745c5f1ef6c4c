"""Daemons of one cluster: started with a record each, found again and ended by that record alone, never by name.

A record is the process's own line of /proc/PID/stat, written by the process itself before it becomes the daemon. Number
and start time together mean one process: a number used again by a stranger does not match. Where the machine's cgroups
may be used, daemons also stand in the cluster's own cgroup, which holds their children too (cgroups.py).
"""

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.layout import Cluster
from e2e.cluster.shell import Failed, run, wait_until

#: Arguments: the log, the record, cgroup.procs files separated by colons, then the daemon's command line. `exec` keeps
#: number and start time, so the record is true before the daemon has done anything.
RECORD_AND_BECOME = """
exec </dev/null >>"$1" 2>&1
record=$2; IFS=:; for procs in $3; do echo $$ >"$procs" || exit; done; unset IFS; shift 3; cd /
read -r stat </proc/$$/stat && echo "$stat" >"$record" && exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    name: str
    pid: int
    started: str  # clock ticks since the machine's start
    state: str  # R, S, T (stopped), …; `-` when it has ended


def start(
    cluster: Cluster,
    name: str,
    command: Sequence[str | Path],
    *,
    groups: Iterable[Path] = (),
    env: Mapping[str, str] | None = None,
) -> int:
    """Start a daemon, nobody's child, in a session of its own; returns its number. `groups`: cgroup.procs to join."""
    record = cluster.processes / name
    record.unlink(missing_ok=True)
    joined = ":".join(map(str, groups))
    script = ("/bin/sh", "-c", RECORD_AND_BECOME, name, str(cluster.log(name)), str(record), joined)
    run("setsid", "--fork", *script, *command, env=env)
    wait_until(f"{name}: started (see {cluster.log(name)})", lambda: find(cluster, name) is not None, seconds=10)
    return required(cluster, name).pid


def find(cluster: Cluster, name: str) -> Daemon | None:
    """The daemon of a record, alive or ended; None without a whole record."""
    try:
        pid, started, _ = parse((cluster.processes / name).read_text())
    except (OSError, ValueError):
        return None
    return Daemon(name, pid, started, state_of(pid, started))


def required(cluster: Cluster, name: str) -> Daemon:
    """The living daemon of a record; raises Failed, with the end of its log, when there is none."""
    daemon = find(cluster, name)
    if daemon is None or daemon.state == "-":
        raise Failed(f"{name} of cluster {cluster.name} does not run; the end of its log:\n{tail(cluster, name)}")
    return daemon


def recorded(cluster: Cluster) -> list[Daemon]:
    if not cluster.processes.is_dir():
        return []
    found = (find(cluster, path.name) for path in sorted(cluster.processes.iterdir()))
    return [daemon for daemon in found if daemon is not None]


def alive(cluster: Cluster, name: str) -> bool:
    daemon = find(cluster, name)
    return daemon is not None and daemon.state != "-"


def send(daemon: Daemon, number: signal.Signals) -> None:
    """Signal the very process of the record. Between look and signal stands a pidfd, so a number used again is safe."""
    try:
        handle = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return
    try:
        if state_of(daemon.pid, daemon.started) != "-":
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def kill_all(cluster: Cluster) -> None:
    """End every recorded daemon; nothing of a cluster that goes away is worth a farewell."""
    for daemon in recorded(cluster):
        send(daemon, signal.SIGKILL)
    wait_until("daemons ended", lambda: all(daemon.state == "-" for daemon in recorded(cluster)), seconds=20)


def state_of(pid: int, started: str) -> str:
    try:
        _, now, state = parse(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, ValueError):
        return "-"
    return state if now == started and state not in "ZX" else "-"


def parse(stat: str) -> tuple[int, str, str]:
    """Number, start time and state out of a line of /proc/PID/stat; ValueError when it is cut short."""
    head, _, rest = stat.rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        raise ValueError("a cut record")
    return int(head.split()[0]), fields[19], fields[0]


def memory_mib(daemon: Daemon) -> int:
    """Proportional share of resident memory."""
    try:
        rollup = Path(f"/proc/{daemon.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def tail(cluster: Cluster, name: str, lines: int = 8) -> str:
    try:
        return "\n".join(cluster.log(name).read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return f"no log at {cluster.log(name)}"
