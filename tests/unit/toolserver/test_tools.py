"""How long a call may take: the gateway's order says it, and tells the model the same."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from towline.toolserver.beneath import Workspace
from towline.toolserver.calls import Call
from towline.toolserver.execute import Executor
from towline.toolserver.result import Result
from towline.toolserver.tools import EXEC_SECONDS, WALK_SECONDS, Tools


class Clock:
    """An executor that runs nothing and notes how long it might have."""

    async def command(self, command: str, folder: int, seconds: float, *_: Any) -> Result:
        return self._noted(seconds)

    async def worker(self, work: Callable[[int, int], int], folder: int, seconds: float, *_: Any) -> Result:
        return self._noted(seconds)

    def _noted(self, seconds: float) -> Result:
        return Result("ok", str(seconds), 0, exit_code=0)


@pytest.mark.parametrize(
    ("tool", "arguments", "ordered", "allowed"),
    [
        ("exec", {"command": "make"}, 900, 900),
        ("exec", {"command": "make"}, None, EXEC_SECONDS),
        ("exec", {"command": "make", "timeout_seconds": 600}, 600, 600),
        ("exec", {"command": "make", "timeout_seconds": 600}, None, 600),
        ("exec", {"command": "make", "timeout_seconds": 600}, 5, 5),
        ("list_dir", {}, 60, 60),
        ("search", {"pattern": "x"}, 60, 60),
        ("search", {"pattern": "x"}, None, WALK_SECONDS),
    ],
)
async def test_a_call_is_given_the_time_of_its_order(
    tool: str, arguments: dict[str, Any], ordered: float | None, allowed: float, tmp_path: Path
) -> None:
    tools = Tools(Workspace(str(tmp_path)), cast(Executor, Clock()))
    call = Call("tc_1", b"", streams=False)

    result = await asyncio.wait_for(tools.run(call, tool, arguments, ordered), 5)

    assert float(result.text) == allowed
