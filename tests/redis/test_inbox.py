"""Prompts: posted once, read in order, refused after the end."""

import asyncio

import pytest

from towline import inbox
from towline.errors import Invalid, LogClosed
from towline.events import runs
from towline.events.event import draft
from towline.events.log import EventLog
from towline.inbox import Prompt


async def test_prompts_are_numbered_and_read_after_a_cursor(store, run):
    await inbox.post(store, run, "first", key="k1", sender="ada")
    await inbox.post(store, run, "second, ünïcode", key="k2", delivery="steer")

    assert await inbox.read_after(store, run, "0-0") == [
        Prompt("1-0", "first", "queue", "ada"),
        Prompt("2-0", "second, ünïcode", "steer", ""),
    ]
    assert [prompt.id for prompt in await inbox.read_after(store, run, "1-0")] == ["2-0"]
    assert await inbox.read_after(store, run, "2-0") == []
    assert (await EventLog(store, run).state()).inbox_head == 2


async def test_a_prompt_posted_again_under_its_key_is_the_first_one(store, run):
    prompts = await asyncio.gather(*(inbox.post(store, run, f"text {n}", key="same") for n in range(5)))

    assert len(set(prompts)) == 1
    assert len(await inbox.read_after(store, run, "")) == 1


async def test_a_post_whose_reply_was_lost_is_in_the_inbox_once(store, run, lose_replies):
    lose_replies(1)

    assert (await inbox.post(store, run, "hello", key="k")).id == "1-0"
    assert len(await inbox.read_after(store, run, "0-0")) == 1


async def test_a_finished_run_takes_no_prompts(store, run, now):
    await inbox.post(store, run, "in time", key="k1")
    await runs.finish(store, run, 1, draft("run.completed", {}, now=now))

    with pytest.raises(LogClosed):
        await inbox.post(store, run, "too late", key="k2")
    assert (await inbox.post(store, run, "in time", key="k1")).id == "1-0", "a repeat is no new prompt"


async def test_a_prompt_beyond_the_limit_is_refused_before_it_is_sent(store, run):
    with pytest.raises(Invalid, match="expected at most"):
        await inbox.post(store, run, "x" * (inbox.MAX_CONTENT_BYTES + 1), key="k")
