"""`towline cancel` on a cluster: one patch of one switch, in the CLI's own name; a small real API server answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.cli.cluster_api import PATH, Api, serving
from towline.cli.__main__ import parser
from towline.settings import LocalSettings


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(tmp_path) as api:
        yield api


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
