"""The history that a run takes over from another's log: whole, from a compaction on, or not at all."""

from typing import Any

import pytest

from towline.api.snapshot import ContinueFrom
from towline.clock import utc_now
from towline.events import runs
from towline.events.event import Draft, draft
from towline.events.totals import NOTHING
from towline.harness.compaction import Cut, compacted
from towline.harness.fold import SUMMARY_HEAD, History
from towline.harness.reading import SourceGone, taken_over

LARGE = "large " * 20_000  # its data stands beside the log


def prompt(number: int, content: str) -> Draft:
    message = {"prompt_id": f"{number}-0", "content": content, "delivery": "queue", "sender": "", "key": ""}
    return draft("user.message", message, now=utc_now())


def summary(text: str) -> Draft:
    return draft("context.compacted", compacted(History(), Cut(0, None, "budget"), text, NOTHING), now=utc_now())


@pytest.fixture
async def source(run):
    """A log of eight events with two compactions, and its large data."""
    await runs.create(run.store, run.ref, b"{}", now=utc_now())
    said = [
        *(prompt(1, LARGE), prompt(2, "Long ago."), prompt(3, LARGE), summary("The first.")),  # seq 2 to 5
        *(prompt(4, "Lately."), summary("The second."), prompt(5, "Now.")),  # 6, 7, 8
    ]
    await runs.append_once(run.store, run.ref, 1, said, "said")
    return [run.ref.keys.blob(said[0].id), run.ref.keys.blob(said[2].id)]


async def taken(run, seq: int | None = None) -> list[Any]:
    fact = await taken_over(run.store, ContinueFrom(namespace=run.ref.namespace, uid=run.ref.uid, seq=seq))
    assert fact.data["source"]["seq"] == (seq or 8)
    return [message["text"] for message in fact.data["kept"]]


WHOLE = {
    None: [SUMMARY_HEAD + "The second.", "Now."],
    3: [LARGE, "Long ago."],
    6: [SUMMARY_HEAD + "The first.", "Lately."],
}


@pytest.mark.parametrize("seq", WHOLE)
async def test_of_a_log_that_is_all_there_what_was_said_up_to_the_event_is_taken(seq, run, source):
    assert await taken(run, seq) == WHOLE[seq]


@pytest.mark.parametrize("seq", [None, 6])
async def test_behind_a_trimmed_beginning_the_history_begins_with_a_compaction(seq, run, source):
    assert await runs.trim(run.store, run.ref, 5, above=0) == 4

    assert await taken(run, seq) == WHOLE[seq]


async def test_what_was_trimmed_is_not_taken_for_an_empty_history(run, source):
    await runs.trim(run.store, run.ref, 5, above=0)

    with pytest.raises(SourceGone, match="is kept from seq 5 on, which is behind seq 4"):
        await taken(run, 4)


async def test_a_log_trimmed_to_nothing_is_no_history(run, source):
    await runs.trim(run.store, run.ref, 9, above=0)

    with pytest.raises(SourceGone, match="has a gap before seq 9"):
        await taken(run)


@pytest.mark.parametrize("seq", [None, 6])
async def test_a_trim_that_was_broken_off_takes_nothing_from_what_lies_behind_the_compaction(seq, run, source):
    await run.store.client.delete(*source)

    assert await taken(run, seq) == WHOLE[seq]


async def test_a_history_is_not_begun_behind_large_data_that_is_gone(run, source):
    await run.store.client.delete(*source)

    with pytest.raises(SourceGone, match=r"has a gap before seq 3, and no context\.compacted behind it"):
        await taken(run, 3)
