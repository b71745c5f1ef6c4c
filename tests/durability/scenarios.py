"""The runs of the sweep: what the model says, what the clients do, and what a correct run leaves behind.

Each scenario passes by some of the failpoints; `sweep.py` finds out which by letting it run undisturbed. Some have a
first death of their own, since there are points that only a process which takes over comes by.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.durability.rig import EFFECTS, NO_ARMS, Arms, Rig, Run, kill_now
from towline.api.snapshot import ScriptedStep
from towline.clock import utc_now
from towline.events import runs
from towline.events.appender import Appender
from towline.events.event import RunRef, draft
from towline.events.totals import Totals
from towline.exit_codes import HarnessExit
from towline.testing.scripted_server import Fault, ScriptedServer

Act = Callable[[Run], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: Sequence[dict[str, Any]]
    orders: Sequence[str] = ()
    given: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    act: Act | None = None
    first: Arms = NO_ARMS
    """Deaths that belong to it."""
    before: Callable[[Rig], Awaitable[dict[str, Any]]] | None = None
    """Makes what the run needs, and says how its snapshot names it."""
    faults: dict[int, Fault] | None = None
    """Served over HTTP by a provider that misbehaves so, by number of the request."""
    ends: str = "run.completed"

    @asynccontextmanager
    async def snapshot(self, rig: Rig) -> AsyncIterator[dict[str, Any]]:
        """The fields of a run's snapshot, for as long as its provider is there."""
        common = {"tools": ["exec", "list_dir", "write_file"], "policy": POLICY, **self.given}
        if self.before is not None:
            common |= await self.before(rig)
        if self.faults is None:
            yield common | {"model": {**SCRIPTED, **self.model, "script": list(self.steps)}}
            return
        async with ScriptedServer([ScriptedStep.model_validate(step) for step in self.steps], self.faults) as server:
            yield common | {
                "model": {"api": "AnthropicMessages", "provider": "test", "name": "m", "base_url": server.url}
            }


SCRIPTED = {"api": "Scripted", "provider": "test", "name": "scripted"}
POLICY = {
    "default": "Deny",
    "rules": [{"tool": "exec", "action": "Allow"}, {"tool": "list_dir", "action": "Allow"}],
}


def executes(*words: str, then: str = "") -> dict[str, Any]:
    """A tool use that leaves its words behind, and does something more."""
    command = "; ".join(f"echo {word} >> {EFFECTS}" for word in words)
    return {"name": "exec", "arguments": {"command": f"{command}; {then}" if then else command}}


def says(text: str, *calls: dict[str, Any], pause: int = 2) -> dict[str, Any]:
    return {"text": text, "tool_calls": list(calls), "chunk_milliseconds": pause}


SLOW = "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"
"""Long enough that the gateway attends to the call, and shows its output."""

HELD = "for i in $(seq 400); do [ -e go ] && break; echo tick; sleep 0.05; done"
"""Runs until `let_go`, so that a process can be replaced meanwhile, however long that takes."""

WORDS = "A few words, so that the answer comes in pieces."


async def _prompts(run: Run) -> None:
    """Three, one of them twice; the last while the run works."""
    await run.post("Second.", key="a")
    await run.post("Third.", key="b")
    await run.post("Second.", key="a")
    await run.until("turn.started", 2)
    await run.post("Fourth.", key="c")
    await run.until("run.completed")
    await run.post("Too late.", key="d")


async def _talk(run: Run) -> None:
    for number, text in enumerate(("And then?", "And after that?"), start=1):
        await run.until("turn.completed", number)
        await run.until("turn.waiting")
        await asyncio.sleep(0.2)  # it waits, and has looked into the inbox in vain
        await run.post(text, key=f"k{number}")
    await run.until("turn.completed", 3)
    await run.cancel("enough")


async def _interrupt(run: Run) -> None:
    """Twice: while a command runs, and while the model speaks."""
    await run.until("agent.tool_use")
    await asyncio.sleep(0.6)
    await run.post("Stop.", key="a", delivery="interrupt")
    await run.until("turn.started", 2)
    await asyncio.sleep(0.4)
    await run.post("Stop again.", key="b", delivery="interrupt")


async def _steer(run: Run) -> None:
    await run.until("agent.tool_use")
    await run.post("In French, please.", key="a", delivery="steer")
    await let_go(run)


async def _wake(run: Run) -> None:
    """After it has fallen asleep, and again."""
    for number in (1, 2):
        await run.until("turn.completed", number)
        while not (asleep := [end for end in run.harness_exits if end.code == HarnessExit.ASLEEP]) or (
            len(asleep) < number
        ):
            await asyncio.sleep(0.1)
        await run.post(f"Prompt {number}.", key=f"k{number}")
    await run.until("turn.completed", 3)
    await run.cancel("enough")


async def _cancel(run: Run) -> None:
    await run.until("agent.tool_use")
    await asyncio.sleep(0.6)  # the command runs, and the gateway has begun to attend to it
    await run.cancel("enough")


async def _kill_harness_in_call(run: Run) -> None:
    await run.until("agent.tool_use")
    if len(run.logs) == 1 and run.harness is not None:
        kill_now(run.harness)
    await run.until("harness.started", 2)
    await asyncio.sleep(0.3)  # it has asked for the call again
    await let_go(run)


async def _kill_sandbox_in_call(run: Run) -> None:
    await run.until("sandbox.ready")
    await run.until("agent.tool_use")
    await asyncio.sleep(0.3)
    await run.rig.sandboxes.suspend(run.sandbox)  # it is gone, its volume is kept


async def _another_run(rig: Rig) -> dict[str, Any]:
    """One whose last call has no result, which is not carried over."""
    source = RunRef("default", secrets.token_hex(8), "source")
    await runs.create(rig.store, source, b"{}", now=utc_now())
    call = {"type": "tool_use", "call_id": "tc_old_0", "name": "exec", "input": {"command": "true"}, "provider_id": ""}
    message = {
        "message_id": "msg_old",
        "content": [{"type": "text", "text": "I try."}, call],
        "stop_reason": "tool_use",
    }
    prompt = {"prompt_id": "0-0", "content": "Try.", "delivery": "queue", "sender": ""}
    facts = [
        draft("turn.started", {"prompt_ids": ["0-0"]}, now=utc_now(), turn=1),
        draft("user.message", prompt, now=utc_now(), turn=1),
        draft("agent.message", message, now=utc_now(), turn=1),
    ]
    await Appender(rig.store, source, src="harness", epoch=1, nonce="source").append(facts, Totals(turns=1))
    return {"continue_from": {"namespace": "default", "uid": source.uid}}


async def let_go(run: Run) -> None:
    """End the command that is HELD."""
    await run.until("sandbox.ready")
    workspace = run.volume / "workspace"
    while not workspace.exists():
        await asyncio.sleep(0.05)
    (workspace / "go").touch()


SCENARIOS = (
    Scenario(
        name="tools",
        steps=[
            says(WORDS, executes("a1"), {"name": "list_dir", "arguments": {}}),
            says("", executes("a2", then=SLOW), {"name": "fly", "arguments": {"to": "moon"}}),
            says(WORDS, {"name": "write_file", "arguments": {"path": "x", "content": "denied"}}, executes("a3")),
            says("Done."),
        ],
        orders=["a1", "a2", "a3"],
        given={"workspace": [{"path": "README", "content": "hello"}]},
    ),
    Scenario(
        name="prompts",
        steps=[
            says("One.", executes("b1", then=SLOW)),
            says("One is done."),
            says("Two.", executes("b2")),
            says("Two is done."),
            says("Three."),
            says("Four.", executes("b3")),
            says("Four is done."),
        ],
        orders=["b1", "b2", "b3"],
        act=_prompts,
    ),
    Scenario(
        name="talk",
        steps=[says("Once."), says("Upon a time.", executes("c1")), says("There was."), says("The end.")],
        orders=["c1"],
        given={"interactive": True},
        act=_talk,
        ends="run.cancelled",
    ),
    Scenario(
        name="flaky",
        steps=[says(WORDS, executes("d1")), says("Done.")],
        orders=["d1"],
        faults={0: Fault(status=429, retry_after="0"), 2: Fault(cut_after_bytes=700)},
    ),
    Scenario(
        name="cancelled",
        steps=[says(WORDS, executes("e1", then="sleep 60; echo late >> effects")), says("Never said.")],
        orders=["e1"],
        act=_cancel,
        ends="run.cancelled",
    ),
    Scenario(
        name="interrupted",
        steps=[
            says(WORDS, executes("k1", then="sleep 60; echo late >> effects")),
            says("word " * 60, pause=30),
            says("Stopped.", executes("k2")),
            says("Done."),
        ],
        orders=["k1", "k2"],
        act=_interrupt,
    ),
    Scenario(
        name="steered",
        steps=[says("", executes("l1", then=HELD)), says("", executes("l2")), says("Done.")],
        orders=["l1", "l2"],
        act=_steer,
    ),
    Scenario(
        name="compacted",
        steps=[*(says("word " * 100, executes(f"m{number}"), pause=0) for number in range(1, 8)), says("Done.")],
        orders=[f"m{number}" for number in range(1, 8)],
        model={"context_tokens": 500},
    ),
    Scenario(
        name="asleep",
        steps=[says("Once."), says("Upon a time.", executes("n1")), says("There was."), says("The end.")],
        orders=["n1"],
        given={"interactive": True, "idle_policy": {"suspend_after_seconds": 1}},
        act=_wake,
        ends="run.cancelled",
    ),
    Scenario(
        name="resumed",
        steps=[says(WORDS, executes("f1")), says("Done.")],
        orders=["f1"],
        first=Arms(harness=("harness.model.streaming:3",)),
    ),
    Scenario(
        name="again",
        steps=[says("", executes("g1", then=HELD), executes("g2")), says("Done.")],
        orders=["g1", "g2"],
        act=_kill_harness_in_call,
    ),
    Scenario(
        name="attached",
        steps=[says("", executes("h1", then=SLOW), executes("h2")), says("Done.")],
        orders=["h1", "h2"],
        first=Arms(gateway=("gateway.output:1",)),
    ),
    Scenario(
        name="adopted",
        steps=[says("", executes("i1"), executes("i2")), says("Done.")],
        orders=["i1", "i2"],
        first=Arms(harness=("harness.call.after:1",), gateway=("gateway.reply:1",)),
    ),
    Scenario(
        name="lost",
        steps=[says("", executes("j1", then=HELD)), says("", executes("j2")), says("Done.")],
        orders=["j1", "j2"],
        act=_kill_sandbox_in_call,
    ),
    Scenario(
        name="continued",
        steps=[says("I try again.", executes("o1")), says("Done.")],
        orders=["o1"],
        before=_another_run,
    ),
)
