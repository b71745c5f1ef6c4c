"""Entry of the tool server: closes the process to others, reads its settings, drops its environment, serves.

Started as the first process of a sandbox, by `python3 -m towline.toolserver` or from the interpreter bundle, where this
package stands alone. Ends only by a signal, or when the network is open that must be closed (`netcheck.py`); wrong
settings end it at once with every fault listed.
"""

import asyncio
import ctypes
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from .auth import Keyholder
from .beneath import Workspace
from .execute import Executor
from .netcheck import DEFAULT_SECONDS, EXIT_CODE, Destination, NotEnforced, parse_destinations, prove
from .processes import Processes
from .server import ToolServer
from .tools import Tools

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEVER_PASSED = ("TOWLINE_", "KUBERNETES_", "LD_", "PYTHON", "GLIBC_")
"""Prefixes of variables that no command gets, even if it was listed to be passed."""


def protect() -> None:
    """Close this process to others of the same user, which could read the key in its memory; adopt all orphans."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment said."""

    listen: str
    key: bytes
    volume: str
    max_processes: int | None
    environment: dict[str, str]
    """Of commands; the whole of it."""
    forbidden: tuple[Destination, ...] = ()
    """What the sandbox must not reach; no call is taken before that is proved."""
    netcheck_seconds: int = DEFAULT_SECONDS
    lifeline: int | None = None
    """Descriptor of a pipe whose other end our maker holds: its end is ours."""


def read_settings(variables: Mapping[str, str]) -> Settings:
    """Raises ValueError with a line for each fault."""
    problems = []
    listen = variables.get("TOWLINE_LISTEN", "")
    kind, _, place = listen.partition(":")
    if kind not in ("fd", "unix", "tcp") or not place or (kind == "fd" and not place.isdigit()):
        problems.append(f"TOWLINE_LISTEN={listen!r}: expected fd:N, unix:PATH or tcp:HOST:PORT")
    key = variables.get("TOWLINE_SANDBOX_KEY", "")
    if len(key) < 32 or not all(digit in "0123456789abcdef" for digit in key):
        problems.append("TOWLINE_SANDBOX_KEY: expected at least 32 lower-case hexadecimal digits")
    volume = variables.get("TOWLINE_VOLUME") or "/sandbox"
    if not volume.startswith("/"):
        problems.append(f"TOWLINE_VOLUME={volume!r}: expected an absolute path")
    most = variables.get("TOWLINE_MAX_PROCESSES", "")
    if most and (not most.isdigit() or int(most) < 1):
        problems.append(f"TOWLINE_MAX_PROCESSES={most!r}: expected a whole number from 1")
    seconds = variables.get("TOWLINE_NETCHECK_SECONDS") or str(DEFAULT_SECONDS)
    if not seconds.isdecimal() or int(seconds) < 1:
        problems.append(f"TOWLINE_NETCHECK_SECONDS={seconds!r}: expected a whole number from 1")
    forbidden: tuple[Destination, ...] = ()
    try:
        forbidden = parse_destinations(variables.get("TOWLINE_FORBIDDEN", ""), variables.get("TOWLINE_NODE_IP", ""))
    except ValueError as fault:
        problems.append(f"TOWLINE_FORBIDDEN: {fault}")
    lifeline = variables.get("TOWLINE_LIFELINE", "")
    if lifeline and not re.fullmatch("fd:[0-9]+", lifeline):
        problems.append(f"TOWLINE_LIFELINE={lifeline!r}: expected fd:N")
    if problems:
        raise ValueError("\n".join(problems))
    volume = os.path.normpath(volume)
    environment = command_environment(variables, volume)
    return Settings(
        listen,
        key.encode(),
        volume,
        int(most) if most else None,
        environment,
        forbidden,
        int(seconds),
        int(lifeline[3:]) if lifeline else None,
    )


def command_environment(variables: Mapping[str, str], volume: str) -> dict[str, str]:
    """The environment of every command: a few names of ours, and those listed in TOWLINE_PASS_ENV."""
    listed = variables.get("TOWLINE_PASS_ENV", "").split(",")
    passed = {name: variables[name] for name in listed if name in variables and not name.startswith(NEVER_PASSED)}
    return passed | {
        "PATH": variables.get("PATH") or DEFAULT_PATH,
        "HOME": f"{volume}/home",
        "TMPDIR": f"{volume}/tmp",  # noqa: S108 - ours alone
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def open_listener(listen: str) -> socket.socket:
    """The listening socket."""
    kind, _, place = listen.partition(":")
    if kind == "fd":
        return socket.socket(fileno=int(place))
    if kind == "unix":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(place)
        os.chmod(place, 0o600)
    else:
        host, _, port = place.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
    return listener


def close_other_descriptors(*kept: int) -> None:
    """Whatever our starter left open must not reach a command."""
    lowest = 3
    for descriptor in sorted(kept):
        os.closerange(lowest, descriptor)
        os.set_inheritable(descriptor, False)
        lowest = descriptor + 1
    os.closerange(lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def make_folders(volume: str) -> None:
    """What the volume has from its first use on. Raises ValueError when it is not ours to write, as not every kind of
    volume knows the pod's fsGroup."""
    try:
        for name, mode in (("workspace", 0o755), ("home", 0o700), ("tmp", 0o700)):
            os.makedirs(f"{volume}/{name}", mode, exist_ok=True)
    except OSError as fault:
        who = f"user {os.geteuid()} with the groups {sorted({os.getegid(), *os.getgroups()})}"
        raise ValueError(f"the volume cannot be used by {who}: {fault}") from None


async def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve until a signal, or our maker's end, ends the process. Raises NotEnforced."""
    if settings.lifeline is not None:
        asyncio.get_running_loop().add_reader(settings.lifeline, os._exit, 0)
    workspace = Workspace(f"{settings.volume}/workspace")
    executor = Executor(Processes(asyncio.get_running_loop(), settings.max_processes), settings.environment)
    server = ToolServer(
        Keyholder(settings.key), workspace, Tools(workspace, executor), f"{settings.volume}/.towline-seeded"
    )
    server.network_proved = not settings.forbidden
    await server.listen(listener)
    await prove(settings.forbidden, settings.netcheck_seconds)
    server.network_proved = True
    await asyncio.get_running_loop().create_future()


def main() -> None:
    """Run the tool server."""
    protect()
    # As first process of a sandbox only signals with a handler reach us from inside, and Python handles SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    try:
        settings = read_settings(os.environ)  # noqa: TID251 - this package stands alone
        os.environ.clear()  # noqa: TID251
        make_folders(settings.volume)
        listener = open_listener(settings.listen)
    except (ValueError, OSError) as fault:
        sys.exit(f"towline tool server: {fault}")
    close_other_descriptors(listener.fileno(), *(() if settings.lifeline is None else (settings.lifeline,)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if settings.max_processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (settings.max_processes, settings.max_processes))
    try:
        asyncio.run(serve(settings, listener))
    except NotEnforced as fault:
        print(f"towline tool server: {fault}", file=sys.stderr)
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
