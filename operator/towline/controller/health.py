"""The operator's one port: `/healthz` for the kubelet's restart, `/readyz` for rollouts, `/metrics` for Prometheus.

Started first by `process.py`. Alive means that the loop turns and no watch is dead; ready, that the API server answers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from towline.controller.metrics import Metrics

Check = Callable[[], str]
"""What is wrong, in a few words; empty when nothing is."""


@dataclass(kw_only=True)
class Health:
    metrics: Metrics
    alive: Check
    ready: Check
    _runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; the port, which is a free one for 0."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self.alive())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self.ready())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})


def _answer(wrong: str) -> web.Response:
    return web.Response(status=503 if wrong else 200, text=wrong or "ok")
