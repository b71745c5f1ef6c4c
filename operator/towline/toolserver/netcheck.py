"""Proves that the network policy is in force, before any command runs: nothing that it must close may answer.

Called by `__main__.py`, inside the sandbox's own network and ahead of all user code. A fresh pod may have the whole
network for its first moments, and a cluster without a policy engine for ever; an open connection outlives a later rule.
It says nothing about who may reach us: the gateway's dial is the proof of that.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_CODE = 78
"""The process ends with it when something stayed open; sysexits calls it a configuration error."""

DEFAULT_SECONDS = 20
ROUNDS = 2
"""Rounds in a row in which everything was closed. Measured: what was closed once never opened again."""
ANSWER_SECONDS = 0.15
"""Refusals are rate limited, so most destinations fall silent instead: this is what a round costs."""
SPACING_SECONDS = 0.1
"""From the begin of a round to that of the next, so that two cannot fall into one moment without any network. The next
one does not wait for the answers of the last: a silence is known to be one only in its own time."""
KUBELET_PORT = 10250

ASK_DNS = b"\x74\x6c\0\0\0\1\0\0\0\0\0\0\7version\4bind\0\0\x10\0\3"
"""A question (CH TXT version.bind) that every name server answers itself, at once: a silent one is out of reach."""

_OUR_OWN_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True)
class Destination:
    """`tcp:10.0.0.1:443`. The host is an address: a sandbox has no name server."""

    kind: socket.SocketKind
    family: socket.AddressFamily
    host: str
    port: int

    def __str__(self) -> str:
        return f"{'tcp' if self.kind == socket.SOCK_STREAM else 'udp'}:{self.host}:{self.port}"


class NotEnforced(Exception):
    """These destinations could still be reached when the time was up."""

    def __init__(self, reached: Sequence[Destination], seconds: float) -> None:
        places = ", ".join(map(str, reached))
        super().__init__(f"the network policy is not in force: after {seconds:g} s the sandbox still reaches {places}")


def parse_destinations(listed: str, node: str) -> tuple[Destination, ...]:
    """Of `kind:address:port` separated by commas, and the kubelet of our own `node`. Raises ValueError."""
    words = [word.strip() for word in listed.split(",") if word.strip()]
    if node:
        words.append(f"tcp:{node}:{KUBELET_PORT}")
    return tuple(dict.fromkeys(_destination(word) for word in words))


def _destination(word: str) -> Destination:
    kind, _, place = word.partition(":")
    host, _, port = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    family = next((family for family in _FAMILIES if _is_address(family, host)), None)
    if kind not in ("tcp", "udp") or family is None or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{word!r} is no destination; expected tcp:ADDRESS:PORT or udp:ADDRESS:PORT")
    return Destination(socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM, family, host, int(port))


def _is_address(family: socket.AddressFamily, host: str) -> bool:
    try:
        socket.inet_pton(family, host)
    except (OSError, ValueError):
        return False
    return True


async def prove(destinations: Sequence[Destination], seconds: float) -> None:
    """Return once all were closed for two rounds; raise NotEnforced when `seconds` have passed without that.

    Closed means refused, unreachable or silent: engines differ in that, and it makes no difference. A sandbox that has
    no network at all is given no destinations, and proves nothing.
    """
    clock = asyncio.get_running_loop().time
    deadline, next_round, closed = clock() + seconds, clock(), 0
    rounds: deque[asyncio.Task[list[Destination]]] = deque()
    try:
        while destinations and closed < ROUNDS:
            if clock() >= next_round:
                rounds.append(asyncio.create_task(_reached(destinations)))
                next_round = clock() + SPACING_SECONDS
            await _until(next_round - clock(), rounds[0] if rounds else None)
            if rounds and rounds[0].done():
                reached = rounds.popleft().result()
                closed = 0 if reached else closed + 1
                if reached and clock() >= deadline:
                    raise NotEnforced(reached, seconds)
    finally:
        for each in rounds:
            each.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)


async def _until(seconds: float, oldest: "asyncio.Task[list[Destination]] | None") -> None:
    """Until the oldest round is over, or for so long."""
    if oldest is None:
        await asyncio.sleep(max(seconds, 0))
    else:
        await asyncio.wait([oldest], timeout=max(seconds, 0))


async def _reached(destinations: Sequence[Destination]) -> list[Destination]:
    """One round: those that answer."""
    answers = await asyncio.gather(*(_is_open(each) for each in destinations))
    return [each for each, is_open in zip(destinations, answers, strict=True) if is_open]


async def _is_open(destination: Destination) -> bool:
    loop = asyncio.get_running_loop()
    with socket.socket(destination.family, destination.kind) as probe:
        probe.setblocking(False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.sock_connect(probe, (destination.host, destination.port))
                if destination.kind == socket.SOCK_DGRAM:
                    await loop.sock_sendall(probe, ASK_DNS)
                    await loop.sock_recv(probe, 512)
        except TimeoutError:
            return False
        except OSError as fault:
            if fault.errno in _OUR_OWN_FAULT:
                raise  # says nothing about the network, so it must not pass for a refusal
            return False
    return True
