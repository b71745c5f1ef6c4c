"""A port of this machine that leads to a pod's, through the API server: what `kubectl port-forward` does.

Called by the command line, for people who reach the API server and not the pods. Each connection to the port is one
WebSocket; a pod that goes away closes it, and its clients see a closed connection.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from towline.kube.kinds import POD

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
"""Channels: the first byte of each message. The first message of each channel tells the port again."""
PIECE = 32 * 1024


@asynccontextmanager
async def forwarded(api: ApiClient, namespace: str, pod: str, port: int) -> AsyncIterator[int]:
    """Yields the port, on 127.0.0.1, and ends all its connections afterwards."""
    open_connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            async with await _dial(api, namespace, pod, port) as socket:
                await _carry(reader, writer, socket)
        except (aiohttp.ClientError, OSError, asyncio.CancelledError):
            pass  # the client sees its connection closed, and says so
        finally:
            open_connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


async def _dial(api: ApiClient, namespace: str, pod: str, port: int) -> aiohttp.ClientWebSocketResponse:
    rest = api.rest_client
    if rest.pool_manager is None:
        rest.pool_manager = rest._create_pool_manager()
    path = POD.path(namespace, pod, "portforward")
    headers: dict[str, str] = {}
    await api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    address = f"{api.configuration.host}{path}?ports={port}"
    session: aiohttp.ClientSession = rest.pool_manager
    return await session.ws_connect(address, headers=headers, protocols=[PROTOCOL], max_msg_size=0)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: aiohttp.ClientWebSocketResponse
) -> None:
    """Both ways, until either side ends."""
    ways = [asyncio.create_task(_out(reader, socket)), asyncio.create_task(_back(socket, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _out(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while piece := await reader.read(PIECE):
        await socket.send_bytes(bytes([DATA]) + piece)


async def _back(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    begun: set[int] = set()
    async for message in socket:
        if message.type != aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in begun:
            begun.add(channel)
            data = data[2:]
        if channel == ERROR and data:
            return
        if channel == DATA and data:
            writer.write(data)
            await writer.drain()
