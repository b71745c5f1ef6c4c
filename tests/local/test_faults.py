"""Faults around a run on this machine, at its worst places: the model's server, the event store, a cancel.

What a run is owed is the same in each case: every event once and in order, every call executed at most once, one
terminal event.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.local.command import Finished, Running, Towline, agent_run, calls, eventually, says, script, template
from towline.api.snapshot import ScriptedCall, ScriptedStep
from towline.events.store import Store
from towline.local.store import Folder, recorded_holder
from towline.testing.scripted_server import Fault, ScriptedServer

CANCEL_SECONDS = 5.0
COUNT = "echo once >> count"


def assert_whole(finished: Finished) -> None:
    """What every run is owed."""
    events = finished.events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert len({event["id"] for event in events}) == len(events)
    ends = [kind for kind in finished.types if kind in ("run.completed", "run.failed", "run.cancelled")]
    assert ends == finished.types[-1:]
    results = [data["call_id"] for data in finished.each("agent.tool_result")]
    assert len(set(results)) == len(results)


# -- the model's server ------------------------------------------------------------------------------------------------

STEPS = (
    ScriptedStep(text="I look. " * 20, tool_calls=(ScriptedCall(name="exec", arguments={"command": COUNT}),)),
    ScriptedStep(text="All is well."),
)


def http_provider(url: str, timeout_seconds: int = 60) -> dict[str, Any]:
    price = {"inputMicroUSD": 1_000_000, "outputMicroUSD": 2_000_000}
    spec = {
        "api": "AnthropicMessages",
        "baseURL": url,
        "requestTimeoutSeconds": timeout_seconds,
        "models": [{"name": "m", "price": price}],
    }
    return script() | {"spec": spec}


def counted(towline: Towline, finished: Finished) -> list[str]:
    """What the calls of COUNT left in the kept workspace."""
    path = Folder(towline.store).volume(finished.events[0]["run"]["uid"]) / "workspace" / "count"
    return path.read_text().split()


@pytest.mark.parametrize("request_number", [0, 1])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(status=429, retry_after="1"), "429"),
        (Fault(status=500), "500"),
        (Fault(cut_after_bytes=900), "ModelUnavailable"),
        (Fault(hang=True), "ModelUnavailable"),
    ],
    ids=["429", "500", "cut", "hang"],
)
async def test_a_fault_of_the_model_is_retried_and_counted(
    towline: Towline, fault: Fault, reason: str, request_number: int
) -> None:
    async with ScriptedServer(STEPS, {request_number: fault}) as server:
        provider = http_provider(server.url, timeout_seconds=3 if fault.hang else 60)
        running = towline.start("run", towline.write("r.yaml", agent_run(), template(), provider), "--json", "--keep")
        finished = await asyncio.to_thread(running.finish)

    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert reason in finished.only("turn.retrying")["reason"]
    assert len(finished.each("agent.message_aborted")) == 1
    assert len(server.requests) == 3
    assert counted(towline, finished) == ["once"]
    done, spans = finished.only("run.completed"), finished.each("span.model_request_end")
    assert [span["error"] is not None for span in spans].count(True) == 1
    for kind in ("input_tokens", "output_tokens"):
        assert done["usage"][kind] == sum(span["usage"][kind] for span in spans)
    assert done["cost_micro_usd"] == done["usage"]["input_tokens"] + 2 * done["usage"]["output_tokens"]
    if fault.cut_after_bytes:
        assert finished.only("agent.message_aborted")["partial"].startswith("I look." if request_number == 0 else "All")


async def test_a_model_whose_answers_stay_broken_fails_the_run_after_bounded_retries(towline: Towline) -> None:
    """One that stays away is asked for two minutes, too long for a test; it goes the same way."""
    async with ScriptedServer(STEPS, {n: Fault(malformed_json=True) for n in range(10)}) as server:
        path = towline.write("r.yaml", agent_run(), template(), http_provider(server.url))
        finished = await asyncio.to_thread(towline.start("run", path, "--json").finish)

    assert finished.code == 1
    assert_whole(finished)
    assert finished.only("run.failed")["reason"] == "ModelProtocolError"
    assert len(server.requests) == 4


async def test_a_run_whose_model_hangs_is_cancelled_at_once(towline: Towline) -> None:
    async with ScriptedServer(STEPS, {0: Fault(hang=True)}) as server:
        path = towline.write("r.yaml", agent_run(), template(), http_provider(server.url))
        running = towline.start("run", path, "--json")
        await asyncio.to_thread(running.until, "agent.message_start")
        finished = await asyncio.to_thread(cancelled, towline, running)
        await asyncio.wait_for(server.left_early.wait(), CANCEL_SECONDS)

    assert_whole(finished)
    assert finished.types[-1] == "run.cancelled"


# -- cancel, whatever the run is doing ---------------------------------------------------------------------------------


def cancelled(towline: Towline, running: Running) -> Finished:
    """Cancels the run by the verb and sees it end in time, with all that belonged to it."""
    assert towline("cancel", "demo", "--reason", "Enough.").code == 0
    asked = time.monotonic()
    finished = running.finish()
    assert time.monotonic() - asked < CANCEL_SECONDS
    assert finished.only("run.cancelled") == {"reason": "Enough."}
    assert finished.code == 1
    assert_whole(finished)
    towline.assert_nothing_is_left()
    return finished


def test_cancel_closes_the_models_stream(towline: Towline) -> None:
    path = towline.write("r.yaml", agent_run(), template(), script(says("word " * 3000, chunkMilliseconds=20)))
    running = towline.start("run", path, "--json")
    running.until("agent.message_start")

    cancelled(towline, running)


def test_cancel_kills_the_whole_tree_of_a_command(towline: Towline) -> None:
    command = "setsid sleep 600 & (trap '' TERM; sleep 601) & sleep 602"
    path = towline.write("r.yaml", agent_run(), template(), script(calls("exec", command=command), says("Done.")))
    running = towline.start("run", path, "--json")
    running.until("agent.tool_use")
    eventually(lambda: [line for line in towline.descendants().values() if "sleep 602" in line])

    finished = cancelled(towline, running)

    assert [data["outcome"] for data in finished.each("agent.tool_result")] == ["cancelled"]


def test_cancel_while_a_sandbox_is_being_made(towline: Towline, tmp_path: Path) -> None:
    towline.cache = tmp_path / "empty-cache"  # the interpreter is built first, which takes seconds
    path = towline.write("r.yaml", agent_run(), template(), script(calls("exec", command="true"), says("Done.")))
    running = towline.start("run", path, "--json")
    running.until("sandbox.requested")

    finished = cancelled(towline, running)

    assert "sandbox.ready" not in finished.types
    assert [data["outcome"] for data in finished.each("agent.tool_result")] == ["cancelled"]


def test_cancel_while_the_run_waits_for_a_prompt(towline: Towline) -> None:
    path = towline.write("r.yaml", agent_run(interactive=True), template(), script(says("Hello.")))
    running = towline.start("run", path, "--json")
    running.until("turn.waiting")

    cancelled(towline, running)


def test_cancel_while_the_run_sleeps(towline: Towline) -> None:
    run = agent_run(interactive=True, idlePolicy={"suspendAfterSeconds": 1})
    running = towline.start("run", towline.write("r.yaml", run, template(), script(says("Hello."))), "--json")
    running.until("turn.waiting")
    eventually(lambda: not [line for line in towline.descendants().values() if "towline.harness" in line])

    cancelled(towline, running)


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_a_prompt_given_twice_while_the_harness_is_dead_is_answered_once(towline: Towline) -> None:
    answers = [says(f"Answer {number}.") for number in range(1, 5)]
    path = towline.write("r.yaml", agent_run(interactive=True), template(), script(*answers))
    running = towline.start("run", path, "--json")
    running.until("turn.waiting")
    os.kill(towline.process("towline.harness"), signal.SIGKILL)

    for _ in range(2):
        assert towline("prompt", "demo", "Still there?", "--key", "k").code == 0

    running.until("turn.waiting")
    assert towline("prompt", "demo", "Still there?", "--key", "k").code == 0, "after it was answered, too"
    assert towline("prompt", "demo", "And now?").code == 0
    running.until("turn.waiting")
    finished = cancelled(towline, running)
    assert [data["content"] for data in finished.each("user.message")] == ["Do it.", "Still there?", "And now?"]
    assert len(finished.each("agent.message")) == 3
    assert len(finished.each("harness.lost")) == 1


def test_a_key_that_another_prompt_has_is_refused(towline: Towline) -> None:
    path = towline.write("r.yaml", agent_run(interactive=True), template(), script(says("Hello."), says("Yes.")))
    running = towline.start("run", path, "--json")
    running.until("turn.waiting")
    assert towline("prompt", "demo", "One.", "--key", "k").code == 0

    other = towline("prompt", "demo", "Two.", "--key", "k")

    assert other.code == 2
    assert 'towline: key: "k" was used before for another prompt' in other.err
    cancelled(towline, running)


# -- the event store ---------------------------------------------------------------------------------------------------

Trouble = Callable[[Store], Awaitable[None]]


def slow_then_busy(towline: Towline) -> Running:
    """A run that streams for some seconds, then calls a tool three times."""
    steps = [says("word " * 100, chunkMilliseconds=20) | calls("exec", command=COUNT)]
    steps += [calls("exec", command=COUNT), calls("exec", command=COUNT), says("Done.")]
    path = towline.write("r.yaml", agent_run(), template(), script(*steps))
    running = towline.start("run", path, "--json", "--keep")
    running.until("agent.message_start")
    return running


@asynccontextmanager
async def store_of(towline: Towline) -> AsyncIterator[Store]:
    holder = recorded_holder(Folder(towline.store))
    assert holder is not None
    store = Store.connect(f"unix://{holder.socket}")
    try:
        yield store
    finally:
        await store.aclose()


async def refused(store: Store, word: str) -> int:
    """How often the store has answered with this error."""
    stats = await store.client.execute_command("INFO", "errorstats")
    found: int = stats.get(f"errorstat_{word}", {}).get("count", 0)
    return found


@pytest.mark.parametrize(
    ("setting", "trouble", "peace", "word"),
    [("min-replicas-to-write", "1", "0", "NOREPLICAS"), ("maxmemory", "1", "0", "OOM")],
    ids=["refuses writes", "is full"],
)
async def test_a_store_that_takes_no_writes_pauses_the_run_and_no_call_runs_without_its_record(
    towline: Towline, setting: str, trouble: str, peace: str, word: str
) -> None:
    running = await asyncio.to_thread(slow_then_busy, towline)
    uid = json.loads(running.seen[0])["run"]["uid"]
    async with store_of(towline) as store:
        await store.client.execute_command("CONFIG", "SET", setting, trouble)
        async with asyncio.timeout(60):
            while await refused(store, word) < 8:
                await asyncio.sleep(0.05)
        assert not (Folder(towline.store).volume(uid) / "workspace" / "count").exists()
        await store.client.execute_command("CONFIG", "SET", setting, peace)

    finished = await asyncio.to_thread(running.finish)

    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert counted(towline, finished) == ["once"] * 3


async def test_a_store_that_answers_late_costs_no_event_and_no_call(towline: Towline) -> None:
    """Longer than our clients wait: what they ask again must not be done twice."""
    running = await asyncio.to_thread(slow_then_busy, towline)
    async with store_of(towline) as store:
        await store.client.execute_command("CLIENT", "PAUSE", 7000, "ALL")

    finished = await asyncio.to_thread(running.finish)

    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert counted(towline, finished) == ["once"] * 3


async def test_what_the_launcher_told_is_told_again_when_the_store_has_lost_it(towline: Towline) -> None:
    """The store forgets what it no longer wrote down, as after a power cut; the run goes on and its view, too."""
    path = towline.write("r.yaml", agent_run(interactive=True), template(), script(says("One."), says("Two.")))
    running = await asyncio.to_thread(towline.start, "run", path, "--json", "--keep")
    await asyncio.to_thread(running.until, "turn.waiting")
    uid = json.loads(running.seen[0])["run"]["uid"]
    async with store_of(towline) as store:
        await store.client.execute_command("CONFIG", "SET", "appendonly", "no")
        os.kill(towline.process("towline.harness"), signal.SIGKILL)
        await asyncio.to_thread(running.until, "harness.resumed")
        os.kill(towline.process("valkey-server"), signal.SIGKILL)

    await asyncio.to_thread(prompted, towline, "And now?")
    await asyncio.to_thread(running.until, "turn.waiting")
    assert (await asyncio.to_thread(towline, "cancel", "demo")).code == 0
    shown = await asyncio.to_thread(running.finish)

    assert shown.code == 1, shown.err
    kept = towline("tail", uid, "--json")
    assert_whole(kept)
    assert [data["epoch"] for data in kept.each("harness.lost")] == [1]
    assert len(kept.each("store.lost")) == 1
    assert [data["content"] for data in kept.each("user.message")] == ["Do it.", "And now?"]
    lost = {event["id"] for event in shown.events if event["type"] == "harness.lost"}
    assert lost == {event["id"] for event in kept.events if event["type"] == "harness.lost"}, "the same event again"


def prompted(towline: Towline, text: str) -> None:
    """Gives a prompt, again while the store is being started anew."""
    eventually(lambda: towline("prompt", "demo", text, "--key", text).code == 0)
