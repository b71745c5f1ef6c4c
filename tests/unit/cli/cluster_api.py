"""A small real API server that lists runs, for the verbs of the command."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

SYSTEM = "/api/v1/namespaces/towline-system"
PATH = "/apis/towline.dev/v1alpha1/namespaces/team/agentruns"


class Api:
    """Lists the runs it was given, keeps the patches, and has a bundled store, whose pods may be away."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.runs: list[dict[str, Any]] = []
        self.patches: list[tuple[str, str, Any]] = []
        self.has_store = True

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": self.runs})

    async def patch(self, request: web.Request) -> web.Response:
        self.patches.append((request.path, request.query["fieldManager"], await request.json()))
        return web.json_response(self.runs[0])

    async def secret(self, _: web.Request) -> web.Response:
        if not self.has_store:
            return web.json_response({"reason": "NotFound", "message": "no such secret"}, status=404)
        return web.json_response({"data": {"url": ""}})

    async def pods(self, _: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": []})

    def has(self, name: str, phase: str = "", reason: str = "", message: str = "", uid: str = "u-1") -> None:
        """Instead of the one of that name; `reason` is that of Succeeded while it is Unknown."""
        metadata = {"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
        condition = {"type": "Succeeded", "status": "Unknown", "reason": reason, "message": message}
        status: dict[str, Any] = {"phase": phase} | ({"conditions": [condition]} if reason else {})
        self.runs = [each for each in self.runs if each["metadata"]["name"] != name]
        self.runs.append({"metadata": metadata} | ({"status": status} if phase else {}))


def write_kubeconfig(path: Path, server: str) -> None:
    """For one API server, as somebody whose namespace is `team`."""
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [context],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(config))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Api]:
    """With a kubeconfig for it in a folder."""
    api = Api(folder / "config")
    app = web.Application()
    app.router.add_get(PATH, api.list)
    app.router.add_get(SYSTEM + "/secrets/towline-store", api.secret)
    app.router.add_get(SYSTEM + "/pods", api.pods)
    app.router.add_patch(PATH + "/{name}", api.patch)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    write_kubeconfig(api.kubeconfig, f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield api
    await runner.cleanup()
