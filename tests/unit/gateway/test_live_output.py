import asyncio

import pytest

from towline.errors import StoreUnavailable
from towline.gateway.live_output import MAX_CHARACTERS, LiveOutput


class Viewer:
    """Takes the deltas, and tells when there are so many characters."""

    def __init__(self) -> None:
        self.deltas: list[dict] = []
        self.arrived = asyncio.Event()

    async def push(self, delta) -> None:
        self.deltas.append(dict(delta))
        self.arrived.set()

    async def seen(self, text: str) -> None:
        async with asyncio.timeout(5):
            while "".join(delta["text"] for delta in self.deltas) != text:
                self.arrived.clear()
                await self.arrived.wait()


@pytest.fixture(autouse=True)
def short_interval(monkeypatch):
    monkeypatch.setattr("towline.gateway.live_output.INTERVAL_SECONDS", 0.01)


async def test_pieces_that_come_together_are_sent_together_with_their_offset():
    viewer = Viewer()
    live = LiveOutput("tc_1", viewer.push)

    live.add(0, "he")
    live.add(2, "llo")
    await viewer.seen("hello")
    live.add(5, " you")
    await viewer.seen("hello you")
    await live.aclose()

    assert viewer.deltas == [
        {"kind": "tool_output", "call_id": "tc_1", "offset": 0, "text": "hello"},
        {"kind": "tool_output", "call_id": "tc_1", "offset": 5, "text": " you"},
    ]


async def test_what_a_second_connection_tells_again_is_sent_once():
    viewer = Viewer()
    live = LiveOutput("tc_1", viewer.push)

    live.add(0, "hello")
    live.add(0, "hello")
    live.add(3, "lo you")
    await viewer.seen("hello you")
    await live.aclose()


async def test_a_piece_beyond_a_hole_is_left_out():
    viewer = Viewer()
    live = LiveOutput("tc_1", viewer.push)

    live.add(10, "later")
    live.add(0, "now")
    await viewer.seen("now")
    await live.aclose()


async def test_output_is_sent_up_to_its_cap():
    viewer = Viewer()
    live = LiveOutput("tc_1", viewer.push)

    for start in range(0, MAX_CHARACTERS + 10_000, 10_000):
        live.add(start, "a" * 10_000)
    await viewer.seen("a" * MAX_CHARACTERS)
    await live.aclose()


async def test_a_store_that_is_away_costs_the_output_and_nothing_else():
    tried = asyncio.Event()

    async def away(delta) -> None:
        tried.set()
        raise StoreUnavailable("away")

    live = LiveOutput("tc_1", away)
    live.add(0, "a")
    await asyncio.wait_for(tried.wait(), 5)
    live.add(1, "b")
    await live.aclose()


async def test_closing_drops_what_was_not_sent_yet(monkeypatch):
    monkeypatch.setattr("towline.gateway.live_output.INTERVAL_SECONDS", 3600)
    viewer = Viewer()
    live = LiveOutput("tc_1", viewer.push)
    live.add(0, "a")

    await asyncio.wait_for(live.aclose(), 5)

    assert viewer.deltas == []
