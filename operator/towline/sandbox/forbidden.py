"""What no sandbox may reach, as addresses: its tool server tries each before it takes a call (toolserver/netcheck.py).

Asked by the operator at its start, and now and then, since addresses change. The list is not the isolation, only the
proof of it: one destination of each kind that a missing network policy would lay open. The kubelet of a sandbox's own
node is added in the pod.
"""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from towline.kube.client import Kube
from towline.kube.errors import Unreachable
from towline.kube.kinds import Kind

METADATA = "tcp:169.254.169.254:80"
"""Where clouds hand out a node's credentials."""

RESOLV_CONF = Path("/etc/resolv.conf")
REDIS_PORT = 6379

SERVICE = Kind("v1", "Service", "services")
ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")

_API = "kubernetes"
"""The API server's own Service, in the namespace `default` of every cluster."""


async def forbidden_destinations(
    kube: Kube, *, redis_url: str, gateway_url: str, resolv_conf: Path = RESOLV_CONF, also: Iterable[str] = ()
) -> tuple[str, ...]:
    """`tcp:ADDRESS:PORT` and `udp:…`, without repetition. Raises Unreachable when a name has no address now.

    `resolv_conf` is this process's own: it names the cluster's DNS. `also` is what an installation adds.
    """
    store, gateway = await asyncio.gather(_resolved(redis_url, REDIS_PORT), _resolved(gateway_url, 80))
    found = [
        *await _api_server(kube),
        *store,
        *gateway,
        *name_servers(_text(resolv_conf)),
        METADATA,
        *also,
    ]
    return tuple(dict.fromkeys(found))


def name_servers(resolv_conf: str) -> list[str]:
    """Both ways to ask each of them."""
    lines = [line.split() for line in resolv_conf.splitlines()]
    servers = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return [f"{kind}:{server}:53" for server in servers for kind in ("udp", "tcp")]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


async def _api_server(kube: Kube) -> list[str]:
    """By its Service, and by what stands behind it: engines may treat these two differently."""
    service = await kube.get(SERVICE, "default", _API)
    if service is None:
        raise Unreachable(f"there is no Service default/{_API}")
    ports = [port["port"] for port in service["spec"]["ports"]]
    found = _each(service["spec"].get("clusterIPs") or (), ports)
    for part in await kube.list(ENDPOINT_SLICE, "default", labels=f"kubernetes.io/service-name={_API}"):
        addresses = [address for endpoint in part.get("endpoints") or () for address in endpoint["addresses"]]
        found += _each(addresses, [port["port"] for port in part.get("ports") or ()])
    return found


async def _resolved(url: str, default_port: int) -> list[str]:
    """Every address of a URL's host; none for a socket of this machine."""
    parts = urlsplit(url)
    if parts.hostname is None:
        return []
    port = parts.port or default_port
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as fault:
        raise Unreachable(f"{parts.hostname} has no address: {fault}") from fault
    return _each([str(address[0]) for *_, address in answers], [port])


def _each(addresses: Sequence[str], ports: Sequence[int]) -> list[str]:
    return [f"tcp:{address}:{port}" for address in addresses for port in ports]
