"""Wall clocks that jump, as by a time server or a hand: nothing of a run hangs on them but the times of its events."""

import os
from pathlib import Path

import pytest

from tests.durability import rig as rigs
from tests.durability.rig import Rig, Run, kill_now
from tests.durability.scenarios import POLICY, SCRIPTED, executes, says
from towline.sandbox.bundle import build_bundle
from towline.testing.checker import check

SHIFTED = """
import datetime, pathlib, sys, time

role = next((word for word in ("harness", "gateway") if f"towline.{word}" in sys.orig_argv), "")
offset = pathlib.Path(__file__).with_name(role or "none")
real, now = time.time, datetime.datetime.now


def ahead():
    try:
        return float(offset.read_text())
    except (OSError, ValueError):
        return 0.0


class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return now(tz) + datetime.timedelta(seconds=ahead())


time.time = lambda: real() + ahead()
datetime.datetime = Shifted
"""
"""A sitecustomize.py that shifts the wall clock of a process of ours by the seconds in the file of its role."""


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(SHIFTED)
    monkeypatch.setitem(rigs.ENVIRONMENT, "PYTHONPATH", str(tmp_path))
    return tmp_path


def shift(clocks: Path, **seconds: float) -> None:
    for role, ahead in seconds.items():
        new = clocks / f"{role}.new"
        new.write_text(str(ahead))
        os.replace(new, clocks / role)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("jump", [600.0, -600.0])
async def test_clocks_that_jump_by_ten_minutes_change_nothing_but_times(tmp_path_factory, clocks, jump):
    steps = [says(f"Number {n}.", executes(f"c{n}")) if n % 2 else says("And?") for n in range(1, 9)]
    given = {
        "model": {**SCRIPTED, "script": steps},
        "tools": ["exec"],
        "policy": POLICY,
        "interactive": True,
        "idle_policy": {"suspend_after_seconds": 3600, "finish_after_seconds": 7200},
    }

    async def act(run: Run) -> None:
        moments = [{"harness": jump}, {"gateway": jump}, {"harness": -jump, "gateway": 0.0}]
        for number, moment in enumerate(moments, start=1):
            await run.until("turn.waiting", number)
            shift(clocks, **moment)
            if number == 2:
                kill_now(run.harness)  # its successor begins by another clock than its log ended
            await run.post(f"Prompt {number}.", key=f"k{number}")
        await run.until("turn.completed", 4)
        await run.cancel("enough")

    async with Rig(build_bundle(tmp_path_factory.mktemp("cache"))) as rig:
        run = Run(rig, given, [f"c{n}" for n in range(1, 9, 2)], own_gateway=True)
        recorded = await run.play(act)

    assert check(recorded) == [], run.story()
    assert recorded.log[-1].type == "run.cancelled"
    assert [event.payload["outcome"] for event in recorded.log if event.type == "agent.tool_result"] == ["ok"] * 4
    times = [event.time for event in recorded.log]
    assert times != sorted(times), "the clocks did jump"
