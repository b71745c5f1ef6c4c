"""`towline cancel` on a cluster: one patch of one switch, in the CLI's own name; a small real API server answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from towline.cli.__main__ import parser
from towline.settings import LocalSettings

PATH = "/apis/towline.dev/v1alpha1/namespaces/team/agentruns"


class Api:
    """Lists the runs it was given, and keeps the patches."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.patches: list[tuple[str, str, Any]] = []

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response({"metadata": {}, "items": self.runs})

    async def patch(self, request: web.Request) -> web.Response:
        self.patches.append((request.path, request.query["fieldManager"], await request.json()))
        return web.json_response(self.runs[0])

    def has(self, name: str, phase: str) -> None:
        metadata = {"name": name, "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.runs.append({"metadata": metadata, "status": {"phase": phase}})


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_get(PATH, api.list)
    app.router.add_patch(PATH + "/{name}", api.patch)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [context],
        "clusters": [cluster],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    tmp_path.joinpath("config").write_text(json.dumps(config))
    yield api
    await runner.cleanup()


async def cancel(folder: Path, *words: str) -> int:
    arguments = parser().parse_args(["cancel", *words, "--kubeconfig", str(folder / "config")])
    async with asyncio.timeout(30):
        code: int = await arguments.verb(arguments, LocalSettings())
    return code


async def test_the_switch_is_set_with_the_reason_on_that_very_run(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.has("chat", "InputRequired")

    assert await cancel(tmp_path, "chat", "--reason", "Enough.") == 0

    spec = {"metadata": {"uid": "u-1"}, "spec": {"cancel": True, "cancelReason": "Enough."}}
    assert api.patches == [(f"{PATH}/chat", "towline-cli", spec)]
    assert capsys.readouterr().out == "cancelling chat\n"


async def test_a_run_that_has_ended_is_left_alone(api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api.has("chat", "Failed")

    assert await cancel(tmp_path, "chat") == 1

    assert api.patches == []
    assert capsys.readouterr().err == "towline: the run chat has ended: Failed\n"
