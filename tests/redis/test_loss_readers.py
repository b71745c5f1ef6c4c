"""A store that loses acknowledged writes: followers and viewers are told, and read on from what survived."""

import asyncio
from contextlib import aclosing

import pytest

from tests.redis.losing import loss_of
from towline.errors import Rewound
from towline.events.event import draft
from towline.events.follow import REMEMBERED, Follower, follow
from towline.events.notices import Notices
from towline.local.watch import Watch


@pytest.fixture
async def ahead(harness, said, replica):
    """A writer whose last two events the replica has not."""
    appender = harness()
    await appender.append([said("kept 1"), said("kept 2")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    return appender


async def test_a_follower_is_told_to_rewind(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1")])
    await appender.append([said("lost 2")])
    following = follow(store, run, poll_seconds=3600)
    seen = [await anext(following) for _ in range(3)]
    await replica.promote()
    await appender.append([said("next")])

    with pytest.raises(Rewound) as rewound:
        async with asyncio.timeout(60):
            seen.extend([event async for event in following])

    assert (rewound.value.incarnation, rewound.value.head) == (2, 1)
    again = [event async for event in take(follow(store, run, rewound.value.head + 1), 4)]
    known = {event.id for event in seen}
    assert [event.payload.get("on", event.type) for event in again] == ["store.lost", "lost 1", "lost 2", "next"]
    assert [event.id in known for event in again][1:3] == [True, True], "identity outlives the loss"


async def test_a_viewer_that_comes_back_from_beyond_the_log_is_told_to_rewind(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    await replica.promote()

    with pytest.raises(Rewound) as rewound:
        await anext(follow(store, run, 4))

    assert rewound.value.head == 1


async def test_a_follower_that_had_not_come_so_far_just_goes_on(store, run, harness, said, replica):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    following = follow(store, run, poll_seconds=0.2)
    await anext(following)
    await appender.append([said("lost")])
    await replica.promote()
    await appender.append([said("next")])

    assert [event.payload.get("on", event.type) async for event in take(following, 3)] == ["store.lost", "lost", "next"]


async def test_what_others_wrote_before_the_loss_was_noticed_is_told_to_be_new(store, run, harness, said, replica):
    appender, gateway = harness(), harness(src="gateway")
    await appender.append([said("kept")])
    await replica.take()
    for text in ("a", "b", "c"):
        await appender.append([said(text)])
    following = follow(store, run, poll_seconds=3600)
    seen = [await anext(following) for _ in range(4)]
    await replica.promote()
    await gateway.append([said("gateway's")])
    await appender.append([said("next")])

    loss = await asyncio.wait_for(loss_of(following), 60)

    assert loss.head == seen[0].seq, "seq 2 is another event now"


async def take(events, count):
    async for event in events:
        yield event
        count -= 1
        if not count:
            await events.aclose()
            return


@pytest.mark.parametrize("written_since", [0, 1, 5])
async def test_a_follower_notices_by_itself_what_the_store_lost_together_with_its_writer(
    store, run, ahead, harness, said, replica, notices, cut_subscriptions, written_since
):
    following = follow(store, run, notices=notices, poll_seconds=3600)
    for _ in range(4):
        await anext(following)
    await replica.promote()
    successor = harness(epoch=2)
    for number in range(written_since):
        await successor.append([said(f"other {number}")])

    losing = asyncio.create_task(loss_of(following))
    await asyncio.sleep(0.1)
    await cut_subscriptions()  # as the death of a master does

    async with asyncio.timeout(10):
        assert (await losing).head == 2
    again = [event async for event in take(follow(store, run, 1), 2 + written_since)]
    assert [event.payload["on"] for event in again[:2]] == ["kept 1", "kept 2"]


async def test_a_follower_that_reads_more_than_it_remembers_of_another_history_notices_all_the_same(
    store, run, ahead, harness, said, replica
):
    following = follow(store, run, poll_seconds=0.2)
    for _ in range(4):
        await anext(following)
    await replica.promote()
    await harness(epoch=2).append([said(number) for number in range(REMEMBERED + 3)])

    async with asyncio.timeout(30):
        assert (await loss_of(following)).head == 2


class Shown:
    """A viewer that keeps what it was shown."""

    wants_deltas = False

    def __init__(self):
        self.seqs = asyncio.Queue()
        self.texts = []

    def event(self, event):
        self.texts.append(event.payload.get("on", event.type))
        self.seqs.put_nowait(event.seq)

    def delta(self, delta):
        raise AssertionError("it wants none")

    def note(self, text):
        raise AssertionError("nobody launches anything")

    def typed(self, text):
        raise AssertionError("there is no terminal")

    async def until(self, seq):
        async with asyncio.timeout(30):
            while await self.seqs.get() != seq:
                pass


@pytest.fixture
def shown():
    return Shown()


@pytest.mark.parametrize("written_since", [0, 1, 5])
async def test_a_viewer_is_not_shown_two_histories_as_one(
    store, run, ahead, harness, said, replica, notices, cut_subscriptions, written_since, now, shown
):
    watch = Watch(run, shown)
    watching = asyncio.create_task(watch.until_closed(store, notices))
    await shown.until(4)
    await replica.promote()
    successor = harness(epoch=2)
    await cut_subscriptions()  # as the death of a master does
    for number in range(written_since):
        await successor.append([said(f"other {number}")])

    async with asyncio.timeout(30):
        with pytest.raises(Rewound) as rewound:
            await watching
    assert rewound.value.head == 2

    await successor.finish(draft("run.completed", {}, now=now))
    async with asyncio.timeout(30):
        assert (await watch.until_closed(store, notices)).type == "run.completed"
    others = [f"other {number}" for number in range(written_since)]
    assert shown.texts == ["kept 1", "kept 2", "lost 1", "lost 2", *others, "run.completed"]


async def leave_and_come_back(store, watch, shown, seq, meanwhile):
    """A store that is opened anew: what happens while nobody looks is told by no notice."""
    notices = Notices(store)
    watching = asyncio.create_task(watch.until_closed(store, notices))
    await shown.until(seq)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await notices.aclose()
    await meanwhile()
    again = Notices(store)
    try:
        async with asyncio.timeout(30):
            return await watch.until_closed(store, again)
    finally:
        await again.aclose()


async def test_a_viewer_that_comes_back_is_told_of_a_loss_that_a_writer_noticed_meanwhile(
    store, run, ahead, said, replica, shown
):

    async def lose():
        await replica.promote()
        await ahead.append([said("next")])

    with pytest.raises(Rewound) as rewound:
        await leave_and_come_back(store, Watch(run, shown), shown, 4, lose)

    assert (rewound.value.incarnation, rewound.value.head) == (2, 2)


@pytest.mark.parametrize("written_since", [0, 1, 2, 5])
async def test_a_viewer_that_comes_back_is_told_of_a_loss_that_no_writer_knows_of(
    store, run, ahead, harness, said, replica, shown, written_since
):

    async def lose():
        await replica.promote()
        successor = harness(epoch=2)
        for number in range(written_since):
            await successor.append([said(f"other {number}")])

    with pytest.raises(Rewound) as rewound:
        await leave_and_come_back(store, Watch(run, shown), shown, 4, lose)

    assert rewound.value.head == 2


async def test_a_reader_that_knows_its_incarnation_is_told_of_a_loss_though_the_log_is_long_again(
    store, run, harness, said, replica
):
    appender = harness()
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])
    await replica.promote()
    await appender.append([said("next")])

    with pytest.raises(Rewound) as rewound:
        await anext(follow(store, run, 4, incarnation=1))

    assert (rewound.value.incarnation, rewound.value.head) == (2, 1)
    assert (await anext(follow(store, run, 4, incarnation=2))).seq == 4


async def test_a_follower_that_was_told_of_a_loss_goes_on_behind_what_survived(store, run, harness, said, replica):
    appender, reader = harness(), Follower(run)
    await appender.append([said("kept")])
    await replica.take()
    await appender.append([said("lost 1"), said("lost 2")])

    async def read(count):
        async with aclosing(reader.events(store, poll_seconds=0.2)) as events:
            return [(await anext(events)).payload.get("on") for _ in range(count)]

    assert await read(3) == ["kept", "lost 1", "lost 2"]
    await replica.promote()
    await appender.append([said("next")])

    with pytest.raises(Rewound):
        await read(1)

    assert reader.next_seq == 2
    assert await read(4) == [None, "lost 1", "lost 2", "next"]
