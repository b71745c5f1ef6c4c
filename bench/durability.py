"""What it costs that nothing is lost: resuming, taking over, waking, and following a thousand runs.

Harness processes are real, killed and replaced as the launcher does it: the loss into the log under the next epoch,
then the next process. Started with arguments this file is the follower whose memory and connections are measured.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

from bench.figure import Figure, Goal, median
from bench.harness_start import Arrivals
from bench.proc import memory_mb
from bench.stage import Stage, stage
from towline import inbox
from towline.api.snapshot import IdlePolicy, Model, ScriptedStep
from towline.clock import utc_now
from towline.events import runs
from towline.events.appender import Appender
from towline.events.event import Draft, RunRef, draft
from towline.events.follow import follow
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store
from towline.events.totals import NOTHING
from towline.exit_codes import HarnessExit
from towline.harness.compaction import compacted, cut_for
from towline.harness.fold import History
from towline.harness.sizes import Window
from towline.local.processes import Child, python_module
from towline.testing.scripted_server import ScriptedServer

ENTRIES = (50, 500, 5000)
OUTPUT = "x" * 2000
"""Of each tool call: 500 tokens, as a command that prints a page."""
FOLLOWED = 1000
PATIENCE_SECONDS = 60.0
SLOW = ScriptedStep(text="word " * 400, chunk_milliseconds=20)


async def measure(quick: bool) -> AsyncIterator[Figure]:
    repeats = 2 if quick else 7
    async with stage() as on:
        await on.start_gateway()
        async for figure in _resumed(on, repeats):
            yield figure
        yield await _taken_over(on, repeats)
        yield await _woken(on, repeats)
    async with stage() as on:
        async for figure in _followed(on, FOLLOWED // 10 if quick else FOLLOWED):
            yield figure


# -- resuming --------------------------------------------------------------------------------------------------------


async def _resumed(on: Stage, repeats: int) -> AsyncIterator[Figure]:
    for entries in ENTRIES:
        seconds: list[float] = []
        read = 0
        async with ScriptedServer([]) as server:
            server.requests = arrivals = Arrivals()
            model = Model(api="AnthropicMessages", provider="scripted", name="scripted", base_url=server.url)
            for _ in range(repeats + 1):
                run = await on.new_run(model)
                await _history(on.store, run, entries)
                state = await EventLog(on.store, run).state()
                read = state.head - max(state.compacted, 1) + 1
                arrivals.arrived.clear()
                begun = perf_counter()
                child = on.start_harness(run, epoch=2)
                await _within(arrivals.arrived.wait())
                seconds.append(arrivals.at - begun)
                child.kill()
                await child.exited.wait()
        note = f"process start to model request inside the turn; slowest {max(seconds[1:]):.2f}"
        name = f"resume_{entries}_entries"
        yield Figure(name=f"{name}_seconds", value=median(seconds[1:]), unit="s", samples=repeats, note=note)
        yield Figure(
            name=f"{name}_read",
            value=read,
            unit="entries",
            samples=repeats,
            note=f"of {state.head} in the log; nine a turn, tool results of 2,000 characters, context 200,000 tokens",
        )


async def _history(store: Store, run: RunRef, entries: int) -> None:
    """Turns with one call each as a harness writes them, compacted when it would; the last one waits for its answer."""
    log, history, head = Appender(store, run, src="harness", epoch=1, nonce="past"), History(), 1
    number = 0
    while True:
        number += 1
        prompt = {"prompt_id": f"{number - 1}-0", "content": f"Question {number}.", "delivery": "queue", "sender": ""}
        facts: list[tuple[str, dict[str, Any]]] = [
            ("turn.started", {"prompt_ids": [prompt["prompt_id"]]}),
            ("user.message", prompt),
        ]
        last = head + 9 > entries
        if not last:
            facts += _answered(number)
        drafts: list[Draft] = []
        for type, data in facts:
            history.apply(type, data, number)
            drafts.append(draft(type, data, now=utc_now(), turn=number))
        if not last and (cut := cut_for(history, Window(200_000))) is not None:
            shorter = compacted(history, cut, "A summary. " * 100, NOTHING)
            history.apply("context.compacted", shorter, number)
            drafts.append(draft("context.compacted", shorter, now=utc_now(), turn=number))
        head = (await log.append(drafts))[-1]
        if last:
            return


def _answered(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Two model requests and a call; the spans of the second are left out."""
    call, message = f"tc_{number}_0", f"msg_{number:012x}"
    use = {"type": "tool_use", "call_id": call, "name": "exec", "input": {"command": "ls"}, "provider_id": ""}
    result = {"call_id": call, "name": "exec", "outcome": "ok", "is_error": False}
    content = [{"type": "text", "text": OUTPUT}]
    answer = {"message_id": message, "content": [{"type": "text", "text": "An answer."}], "stop_reason": "end_turn"}
    return [
        ("agent.message_start", {"message_id": message}),
        ("agent.message", {"message_id": message, "content": [use], "stop_reason": "tool_use"}),
        ("agent.tool_use", {"call_id": call, "name": "exec", "input": {"command": "ls"}, "decision": {}}),
        ("agent.tool_result", {**result, "content": content, "duration_ms": 1}),
        ("agent.message_start", {"message_id": message}),
        ("agent.message", answer),
        ("turn.completed", {"stop_reason": "end_turn"}),
    ]


# -- taking over and waking ------------------------------------------------------------------------------------------


async def _taken_over(on: Stage, repeats: int) -> Figure:
    seconds: list[float] = []
    async with ScriptedServer([SLOW]) as server:
        server.requests = arrivals = Arrivals()
        model = Model(api="AnthropicMessages", provider="scripted", name="scripted", base_url=server.url)
        for _ in range(repeats + 1):
            run = await on.new_run(model)
            arrivals.arrived.clear()
            first = on.start_harness(run)
            await _within(arrivals.arrived.wait())
            begun = perf_counter()
            first.kill()
            second = await _replaced(on, run, first, 2)
            await _within(_event(on, run, "harness.started", 2))
            seconds.append(perf_counter() - begun)
            second.kill()
            await second.exited.wait()
    return Figure(
        name="takeover_seconds",
        value=median(seconds[1:]),
        unit="s",
        goal=Goal(10),
        samples=repeats,
        note=f"kill -9 of a harness in the middle of an answer to its successor's first event; slowest "
        f"{max(seconds[1:]):.2f}",
    )


async def _replaced(on: Stage, run: RunRef, ended: Child, epoch: int) -> Child:
    """As the launcher does: the loss is logged under the next epoch, then its harness starts."""
    await ended.exited.wait()
    assert ended.exit is not None
    data = {"epoch": epoch - 1, "reason": "Killed", "exit_code": ended.exit.code, "signal": ended.exit.signal}
    lost = draft("harness.lost", data, now=utc_now())
    await runs.append_once(on.store, run, epoch, [lost], guard=f"harness.lost:{epoch - 1}")
    return on.start_harness(run, epoch=epoch)


async def _woken(on: Stage, repeats: int) -> Figure:
    seconds: list[float] = []
    model = Model(api="Scripted", provider="scripted", name="scripted", script=(ScriptedStep(text="Hello."),) * 2)
    for _ in range(repeats + 1):
        run = await on.new_run(model, interactive=True, idle_policy=IdlePolicy(suspend_after_seconds=0))
        first = on.start_harness(run)
        await _within(first.exited.wait())
        assert first.exit is not None
        assert first.exit.code == HarnessExit.ASLEEP, first.tail()
        notices = Notices(on.store)
        async with notices.watch(run) as watch:
            began = asyncio.Event()

            async def wake(run: RunRef = run, watch: Any = watch, began: asyncio.Event = began) -> Child:
                began.set()
                while "inbox" not in await watch.wait(PATIENCE_SECONDS):
                    pass
                return on.start_harness(run, epoch=2)

            waking = asyncio.create_task(wake())
            await began.wait()
            begun = perf_counter()
            await inbox.post(on.store, run, "Wake up.", key="a")
            await _within(_event(on, run, "turn.started", 2))
            seconds.append(perf_counter() - begun)
            second = await waking
        await notices.aclose()
        second.kill()
        await second.exited.wait()
    return Figure(
        name="wake_seconds",
        value=median(seconds[1:]),
        unit="s",
        samples=repeats,
        note=f"prompt posted to a sleeping run until its turn starts, no cluster; slowest {max(seconds[1:]):.2f}",
    )


async def _event(on: Stage, run: RunRef, type: str, nth: int) -> None:
    async for event in follow(on.store, run, stop_at_end=False):
        nth -= event.type == type
        if nth == 0:
            return


async def _within(wait: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await wait


# -- following -------------------------------------------------------------------------------------------------------


async def _followed(on: Stage, count: int) -> AsyncIterator[Figure]:
    uids = [(await on.new_run()).uid for _ in range(count)]
    connected = await _connections(on.store)
    follower = on.start(
        "follower", [*python_module("bench.durability"), on.url, *uids], {"PYTHONPATH": ":".join(sys.path)}
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while b"following" not in follower.log.read_bytes():
            assert follower.running, follower.tail()
            await asyncio.sleep(0.05)
    alone, following = (float(word) for word in follower.log.read_text().split() if word[0].isdigit())
    connections = await _connections(on.store) - connected
    follower.kill()
    await follower.exited.wait()
    note = f"{count} runs followed by one process on one Notices"
    yield Figure(
        name="followed_runs_memory",
        value=following - alone,
        unit="MB",
        samples=1,
        note=f"{note}; VmRSS beyond the {alone:.0f} MB of the process that follows none",
    )
    yield Figure(name="followed_runs_connections", value=connections, unit="connections", samples=1, note=note)


async def _connections(store: Store) -> int:
    """Of all clients of the store, subscribers too."""
    said: dict[str, Any] = await store.client.info("clients")
    return int(said["connected_clients"])


async def _follow_all(url: str, uids: list[str]) -> None:
    """Print memory before and while all are followed, then wait to be killed."""
    store = Store.connect(url)
    await store.ping()
    print(f"alone {memory_mb(os.getpid())}", flush=True)
    notices, standing = Notices(store), asyncio.Semaphore(0)

    async def viewer(run: RunRef) -> None:
        async for _ in follow(store, run, notices=notices):
            standing.release()

    viewers = [asyncio.create_task(viewer(RunRef("bench", uid))) for uid in uids]
    for _ in uids:
        await standing.acquire()
    await asyncio.sleep(3)  # a round of polls, too
    print(f"with {memory_mb(os.getpid())} following", flush=True)
    await asyncio.gather(*viewers)


if __name__ == "__main__":
    asyncio.run(_follow_all(sys.argv[1], sys.argv[2:]))
