"""A proxy in front of the API server that lets faults happen: watches that freeze, lose events or expire, and refusals.

The operator under test speaks plain HTTP to it, and it to the API server as the administrator. All else is real.
"""

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

Line = dict[str, Any]


@dataclass
class Proxy:
    """Set the fields at any time; they hold from the next request or event on."""

    kubeconfig: Path
    frozen: asyncio.Event = field(default_factory=asyncio.Event)
    """While set, watches deliver nothing, bookmarks neither."""
    drops: Callable[[Line], bool] = lambda line: False
    """Which watch events are lost."""
    expired: bool = False
    """Watches are answered with 410 Gone, once each."""
    refuses: Callable[[web.Request], web.Response | None] = lambda request: None
    delay: Callable[[web.Request], float] = lambda request: 0.0
    """How many seconds its answer takes longer than it would."""
    counts: dict[str, int] = field(default_factory=dict)
    watches: int = 0

    async def start(self, folder: Path) -> Path:
        """The kubeconfig of the way through the proxy."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(
            cafile=server.get("certificate-authority"), cadata=_pem(server.get("certificate-authority-data"))
        )
        certificate, key = folder / "proxy.crt", folder / "proxy.key"
        for path, name in ((certificate, "client-certificate"), (key, "client-key")):
            data = _pem(user.get(f"{name}-data"))
            path.write_text(data if data is not None else Path(user[name]).read_text())
        context.load_cert_chain(certificate, key)
        self._upstream = server["server"]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0), auto_decompress=False, timeout=aiohttp.ClientTimeout()
        )
        app = web.Application(client_max_size=8 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._port = 0
        await self.open()
        path = folder / "proxy.kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}
        context_ = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [cluster],
                    "contexts": [context_],
                    "current-context": "c",
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        return path

    async def open(self) -> None:
        """Takes connections (again)."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """The API server is away: connections are cut and refused."""
        await self._site.stop()
        for task in list(self._streams):
            task.cancel()
        for transport in list(self._transports):
            transport.abort()

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    _streams: set[asyncio.Task[Any]] = field(default_factory=set)
    _transports: set[Any] = field(default_factory=set)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        self._transports.add(request.transport)
        watch = request.query.get("watch") in ("true", "1")
        verb = "WATCH" if watch else request.method
        self.counts[verb] = self.counts.get(verb, 0) + 1
        await asyncio.sleep(self.delay(request))
        if (refusal := self.refuses(request)) is not None:
            return refusal
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        body = await request.read()
        async with self._session.request(
            request.method, self._upstream + request.raw_path, headers=headers, data=body or None
        ) as answer:
            if watch and answer.status == 200:
                return await self._watch(request, answer)
            content = await answer.read()
            passed = {name: answer.headers[name] for name in ("Content-Type", "Retry-After") if name in answer.headers}
            return web.Response(status=answer.status, body=content, headers=passed)

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.watches += 1
        if self.expired:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        async for raw in answer.content:
            while self.frozen.is_set():
                await asyncio.sleep(0.05)
            if not self.drops(json.loads(raw)):
                await response.write(raw)
        return response


def _pem(data: str | None) -> str | None:
    import base64

    return base64.b64decode(data).decode() if data else None
