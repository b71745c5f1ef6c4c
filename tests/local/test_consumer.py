"""A program that consumes a run through a consumer group, killed in the middle: the group goes on, nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

from tests.local.command import Towline, agent_run, calls, eventually, says, script, template
from towline.events.event import RunRef
from towline.events.groups import Group
from towline.local.store import Folder, opened, recorded_holder

CONSUMER = """
import asyncio, sys
from towline.events.event import RunRef
from towline.events.groups import Group
from towline.events.store import Store

async def main(url, uid):
    group = Group(Store.connect(url), RunRef("default", uid), "indexer", "indexer-1")
    async for event in group.messages(block_ms=200, count=5):
        print(event.id, flush=True)
        if event.seq % 3 == 0:
            await group.ack(event)

asyncio.run(main(*sys.argv[1:]))
"""
"""Acknowledges every third event only: a kill always finds some that are handled and not acknowledged."""


def consume(towline: Towline, uid: str) -> "subprocess.Popen[str]":
    holder = eventually(lambda: recorded_holder(Folder(towline.store)))
    return subprocess.Popen(
        [sys.executable, "-c", CONSUMER, f"unix://{holder.socket}", uid], stdout=subprocess.PIPE, text=True
    )


def killed_after(consumer: "subprocess.Popen[str]", lines: int) -> list[str]:
    """What a consumer had seen when it was killed with -9."""
    assert consumer.stdout is not None
    with consumer:
        seen = [consumer.stdout.readline().strip() for _ in range(lines)]
        consumer.kill()
        return [each for each in seen + consumer.stdout.read().split() if each]


async def seen_by_the_group_now(store: Path, uid: str, last: str) -> list[str]:
    """What the same consumer gets after all that, up to the event `last`: the store is served anew, the group kept."""
    seen: list[str] = []
    async with opened(store, verb="test") as (connected, _):
        group = Group(connected, RunRef("default", uid), "indexer", "indexer-1")
        async for event in group.messages(block_ms=200):
            seen.append(event.id)
            await group.ack(event)
            if event.id == last:
                break
    return seen


async def test_a_consumer_group_killed_in_the_middle_of_a_run_has_seen_every_event_once_after_dedupe(
    towline: Towline,
) -> None:
    steps = [calls("exec", command=f"sleep 0.2; echo {number}") for number in range(8)]
    steps[3] = calls("exec", command="while [ ! -e go ]; do sleep 0.05; done; echo 3")  # the store goes with the run
    manifest = towline.write("run.yaml", agent_run(), template(), script(*steps, says("Counted.")))
    running = towline.start("run", manifest, "--json", "--keep")
    uid = running.until("harness.sealed")["run"]["uid"]

    first = killed_after(consume(towline, uid), lines=4)
    running.until("agent.tool_result", nth=3)
    second = killed_after(consume(towline, uid), lines=7)
    (Folder(towline.store).volume(uid) / "workspace" / "go").touch()
    finished = running.finish()
    assert finished.code == 0, finished.err
    log = [json.loads(line)["id"] for line in finished.out.splitlines()]
    third = await seen_by_the_group_now(towline.store, uid, log[-1])

    assert set(second) & set(first), "what was not acknowledged came again"
    assert list(dict.fromkeys(first + second + third)) == log
