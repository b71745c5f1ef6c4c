"""Live deltas: joined, numbered by characters, flushed at the end, and never the reason a run fails."""

import asyncio

import pytest

from towline.errors import Fenced, StoreUnavailable
from towline.harness.deltas import LiveDeltas


class Live:
    """What was pushed; fails from the n-th push on, when told to."""

    def __init__(self, fault=None, after=0):
        self.deltas, self._fault, self._after = [], fault, after
        self.arrived = asyncio.Event()

    async def push(self, delta):
        if self._fault is not None and len(self.deltas) >= self._after:
            raise self._fault
        self.deltas.append(dict(delta))
        self.arrived.set()


async def test_words_are_joined_and_sent_when_the_answer_ends():
    live = Live()

    async with LiveDeltas(live.push, "msg_a") as deltas:
        for word in ("one ", "two ", "three"):
            await deltas.add("text", word)

    assert live.deltas == [{"kind": "text", "message_id": "msg_a", "offset": 0, "text": "one two three"}]


async def test_a_quiet_model_does_not_hold_back_what_it_said():
    live = Live()

    async with LiveDeltas(live.push, "msg_a") as deltas:
        await deltas.add("text", "one ")
        async with asyncio.timeout(5):
            await live.arrived.wait()
        await deltas.add("text", "two")

    assert [(delta["offset"], delta["text"]) for delta in live.deltas] == [(0, "one "), (4, "two")]


async def test_a_kilobyte_is_sent_at_once():
    live = Live()
    loop = asyncio.get_running_loop()

    async with LiveDeltas(live.push, "msg_a") as deltas:
        began = loop.time()
        await deltas.add("text", "x" * 1024)
        async with asyncio.timeout(5):
            await live.arrived.wait()
        assert loop.time() - began < 0.05


async def test_thinking_and_text_have_offsets_of_their_own():
    live = Live()

    async with LiveDeltas(live.push, "msg_a") as deltas:
        for kind, text in (
            ("thinking", "hm "),
            ("thinking", "yes"),
            ("text", "one "),
            ("thinking", "no"),
            ("text", "x"),
        ):
            await deltas.add(kind, text)

    assert [(delta["kind"], delta["offset"], delta["text"]) for delta in live.deltas] == [
        ("thinking", 0, "hm yes"),
        ("text", 0, "one "),
        ("thinking", 6, "no"),
        ("text", 4, "x"),
    ]


async def test_a_character_that_comes_in_two_halves_is_sent_as_one():
    live = Live()

    async with LiveDeltas(live.push, "msg_a") as deltas:
        await deltas.add("text", "one \ud83d")
        async with asyncio.timeout(5):
            await live.arrived.wait()
        await deltas.add("thinking", "hm")
        await deltas.add("text", "\ude00 two")

    assert [(delta["kind"], delta["offset"], delta["text"]) for delta in live.deltas] == [
        ("text", 0, "one "),
        ("thinking", 0, "hm"),
        ("text", 4, "\N{GRINNING FACE} two"),
    ]


async def test_half_a_character_that_stays_alone_is_replaced():
    live = Live()

    async with LiveDeltas(live.push, "msg_a") as deltas:
        await deltas.add("text", "one \ude00 two \ud83d")

    assert "".join(delta["text"] for delta in live.deltas) == "one \ufffd two \ufffd"


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), RuntimeError("surprise")])
async def test_whatever_goes_wrong_costs_the_deltas_and_nothing_else_and_is_said_once(fault, caplog):
    live = Live(fault, after=1)

    async with LiveDeltas(live.push, "msg_a") as deltas:
        await deltas.add("text", "x" * 1024)
        async with asyncio.timeout(5):
            await live.arrived.wait()
        await deltas.add("text", "y" * 1024)
        await deltas.add("text", "z")

    assert len(live.deltas) == 1
    [record] = caplog.records
    assert record.message == "deltas dropped"
    assert str(fault) in record.fields["cause"]


async def test_being_fenced_reaches_the_loop():
    live = Live(Fenced(1, 2))

    with pytest.raises(Fenced):
        async with LiveDeltas(live.push, "msg_a") as deltas:
            await deltas.add("text", "x")


async def test_the_rest_is_sent_when_the_model_fails():
    live = Live()

    async def fail():
        async with LiveDeltas(live.push, "msg_a") as deltas:
            await deltas.add("text", "half")
            raise ValueError

    with pytest.raises(ValueError):
        await fail()

    assert live.deltas[0]["text"] == "half"


async def test_cancelling_does_not_wait_for_the_store():
    entered = asyncio.Event()

    async def never(delta):
        entered.set()
        await asyncio.Event().wait()

    async def work():
        async with LiveDeltas(never, "msg_a") as deltas:
            await deltas.add("text", "x" * 2000)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    async with asyncio.timeout(5):
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
