"""The harness' own client on a real gateway: what it takes over of a call is what the gateway has recorded."""

from pathlib import Path

import pytest

from tests.local.gateway.world import World
from towline.events.adopted import Adopted
from towline.events.event import NOTHING_SEEN
from towline.harness.tools import Gateway
from towline.harness.transcript import ToolUse, tool_use


class Tail:
    """What the client adopts, and nothing else."""

    seen = NOTHING_SEEN

    def __init__(self) -> None:
        self.adopted: list[Adopted] = []

    def adopt(self, call: Adopted) -> None:
        self.adopted.append(call)

    async def flush(self) -> None:
        raise AssertionError("the store has lost nothing")


@pytest.mark.parametrize(
    "use",
    [
        tool_use("msg_a", 0, "exec", '{"command": "' + "ä" * 30_000, "id"),
        tool_use("msg_a", 1, "ü" * 300_000, "{}", "id"),
        tool_use("msg_a", 2, "", "[1]", "id"),
    ],
    ids=["broken arguments", "a long name", "no name"],
)
async def test_whatever_a_model_writes_the_gateway_s_events_are_put_back_byte_for_byte(
    use: ToolUse, world: World, tmp_path: Path
) -> None:
    gateway, tail = await world.gateway(), Tail()
    (tmp_path / "token").write_text(world.token())

    result = await Gateway(world.http, gateway.url, tmp_path / "token", tail).call(use)

    assert result.outcome == "error"
    [call] = tail.adopted
    events = await world.events("agent.tool_use", "agent.tool_result")
    assert [(each.id, each.data) for each in call.drafts] == [(each.id, each.data) for each in events]
    assert (call.first, call.last) == (events[0].seq, events[-1].seq)
