"""What is done to a run at each point: who is armed, or who is killed from outside, and when that was.

Each act is given a seed's randomness, plays one run to its end, and tells what became of it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

from e2e.installation import HARNESSES, SANDBOXES, SYSTEM
from e2e.kills.nodes import Process
from e2e.kills.play import ORDERS, Run, run
from e2e.kills.points import alone, role, run_name, seeded
from e2e.kills.stage import Stage
from towline.clock import utc_now
from towline.events.event import Event
from towline.exit_codes import HarnessExit
from towline.kube.kinds import POD
from towline.naming import harness_pod_name, sandbox_name
from towline.testing.checker import Violation

KILLED = 128 + signal.SIGKILL
"""How a container's status tells of SIGKILL, and how a failpoint ends the first process of a container."""
LATE_SECONDS = 1.0
"""How long a process that is woken may act beside its successor, before that one is let go on."""
WOKEN_SECONDS = 90.0
"""By then it must have ended by itself. One that cannot reach the store any more needs 15 s to give up."""
MOST_SECONDS = 400.0
"""For everything that is done to one run. Undisturbed, on a machine with nothing else to do, it takes eight."""
GOOD_ENDS = (HarnessExit.FINISHED, HarnessExit.FENCED, HarnessExit.STORE_AWAY, HarnessExit.GATEWAY_AWAY)
PAUSE = "outside.harness.pause"
PAUSES = ("turn.started", "agent.message_start", "agent.tool_use", "sandbox.ready", "agent.tool_result")
"""Behind which event a harness is paused."""


@dataclass
class Outcome:
    """`killed_at` is None when nothing died; `log` is empty when the run did not end."""

    told: str
    killed_at: datetime | None = None
    violations: list[Violation] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    story: str = ""


Outside = Callable[[Stage, Run, Random], Awaitable[datetime]]
"""Kills something of a run that is in a call, and lets the call go on; when it was dead."""


# -- at a failpoint ----------------------------------------------------------------------------------------------------


async def harness_failpoint(stage: Stage, failpoint: str, hit: int, tag: str) -> Outcome:
    outcome = Outcome(f"{failpoint}:{hit}")
    async with run(stage, run_name(failpoint, hit, tag), "quick") as it:
        await _judged(it, outcome, _dies(it, outcome))
    return outcome


async def _dies(it: Run, outcome: Outcome) -> None:
    first = await it.traces.harness()
    await first.dead.wait()
    if await it.stage.exit_code(HARNESSES, harness_pod_name(it.ref.uid, 1)) == KILLED:
        outcome.killed_at = first.died_at


async def gateway_failpoint(stage: Stage, failpoint: str, hit: int, tag: str) -> Outcome:
    """The armed one has the harness' connection; all others are there when it dies."""
    outcome = Outcome(f"{failpoint}:{hit}")
    async with stage.armed("gateway", f"{failpoint}:{hit}") as pod:
        process = await stage.process(pod)
        try:
            await stage.lead_to_armed_gateway()
            async with run(stage, f"gateway-{tag}", "slow") as it:

                async def dies() -> None:
                    await it.follower.until("turn.started")  # it has asked for its tools
                    await stage.lead_to_all_gateways()
                    await _first(process.dead, it.following)

                await _judged(it, outcome, dies())
        finally:
            await stage.lead_to_all_gateways()
        await _told(stage, pod["metadata"]["name"], process, outcome)
    return outcome


async def operator_failpoint(stage: Stage, failpoint: str, hit: int, tag: str) -> Outcome:
    """The run's first harness dies, too, so that the operator has a takeover to do."""
    outcome = Outcome(f"{failpoint}:{hit}")
    async with stage.armed_operator(f"{failpoint}:{hit}") as pod:
        process = await stage.process(pod)
        async with run(stage, run_name("harness.call.after", 1, tag), "quick") as it:
            await _judged(it, outcome, _first(process.dead, it.following))
        await _told(stage, pod["metadata"]["name"], process, outcome)
    return outcome


async def _told(stage: Stage, pod_name: str, process: Process, outcome: Outcome) -> None:
    """Whether the armed process died at its point."""
    if process.dead.is_set() and await stage.exit_code(SYSTEM, pod_name) == KILLED:
        outcome.killed_at = process.died_at
    process.close()


# -- from outside ------------------------------------------------------------------------------------------------------


async def from_outside(stage: Stage, point: str, seed: int, tag: str) -> Outcome:
    outcome, random = Outcome("in a call"), seeded(point, seed)
    async with run(stage, f"outside-{tag}", "held") as it:

        async def act() -> None:
            if point == PAUSE:
                await _paused(stage, it, random, outcome)
                return
            await it.traces.until_done(ORDERS[1])
            await asyncio.sleep(random.random())
            outcome.killed_at = await ACTS[point](stage, it, random)

        await _judged(it, outcome, act())
    if alone(point):
        await stage.renew(role(point))
    return outcome


async def _kill_harness(stage: Stage, it: Run, random: Random) -> datetime:
    at = await (await it.traces.harness()).kill()
    await _second_in_call(it, random)
    return at


async def _delete_harness(stage: Stage, it: Run, random: Random) -> datetime:
    await stage.kube.delete(POD, HARNESSES, harness_pod_name(it.ref.uid, 1), grace_seconds=0)
    at = utc_now()
    await _second_in_call(it, random)
    return at


async def _delete_sandbox(stage: Stage, it: Run, random: Random) -> datetime:
    await stage.kube.delete(POD, SANDBOXES, sandbox_name(it.ref.uid, 1), grace_seconds=0)
    return utc_now()


async def _kill_gateways(stage: Stage, it: Run, random: Random) -> datetime:
    processes = await stage.processes("gateway")
    at = max(await asyncio.gather(*(each.kill() for each in processes)))
    await asyncio.sleep(3 * random.random())
    await it.traces.let_go()
    for each in processes:
        each.close()
    return at


async def _delete_gateways(stage: Stage, it: Run, random: Random) -> datetime:
    for pod in await stage.pods("gateway"):
        await stage.remove(pod)
    at = utc_now()
    await asyncio.sleep(3 * random.random())
    await it.traces.let_go()
    return at


async def _kill_operator(stage: Stage, it: Run, random: Random) -> datetime:
    at = await _without_operator(stage)
    await it.traces.let_go()
    return at


async def _kill_both(stage: Stage, it: Run, random: Random) -> datetime:
    at = await _without_operator(stage)
    await _kill_harness(stage, it, random)
    return at


async def _without_operator(stage: Stage) -> datetime:
    (process,) = await stage.processes("operator")
    try:
        return await process.kill()
    finally:
        process.close()


async def _second_in_call(it: Run, random: Random) -> None:
    """The successor works, and has asked for the call again, or not yet."""
    await it.follower.until("harness.started", 2)
    await asyncio.sleep(random.random())
    await it.traces.let_go()


ACTS: dict[str, Outside] = {
    "outside.harness.kill": _kill_harness,
    "outside.harness.delete": _delete_harness,
    "outside.sandbox.delete": _delete_sandbox,
    "outside.gateway.kill": _kill_gateways,
    "outside.gateway.delete": _delete_gateways,
    "outside.operator.kill": _kill_operator,
    "outside.operator.both": _kill_both,
}


async def _paused(stage: Stage, it: Run, random: Random, outcome: Outcome) -> None:
    """Its pod is deleted by force while nobody can kill its process: the pod's shim, by which the node's runtime would
    do that, stands still, too, as where a runtime hangs or a node is cut off. What the process holds, connections and
    token, it keeps."""
    moment = random.choice(PAUSES)
    await it.follower.until(moment)
    await asyncio.sleep(random.random() / 2)
    old = await it.traces.harness()
    shim = old.parent()
    try:
        outcome.killed_at = await old.stop()
        await shim.stop()
        await stage.kube.delete(POD, HARNESSES, harness_pod_name(it.ref.uid, 1), grace_seconds=0)
        await it.follower.until("harness.started", 2)
        await asyncio.sleep(random.random())
        old.send(signal.SIGCONT)
        early = await _within(LATE_SECONDS, old.dead)
        await it.traces.let_go()
        if not await _within(WOKEN_SECONDS, old.dead):
            outcome.violations.append(Violation("terminal", "a paused harness goes on after its run has ended"))
            return
        code = old.exit_code()
        name = HarnessExit(code).name if code in list(HarnessExit) else str(code)
        outcome.told = f"paused behind {moment}, ended as {name} {'before' if early else 'after'} its successor went on"
        stage.ends.append(name)
        if code not in GOOD_ENDS:
            outcome.violations.append(Violation("terminal", f"a paused harness ended with {name}"))
    finally:
        old.send(signal.SIGCONT)
        shim.send(signal.SIGCONT)
        shim.close()


async def _within(seconds: float, dead: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(dead.wait(), seconds)
    except TimeoutError:
        return False
    return True


# -- both --------------------------------------------------------------------------------------------------------------


async def _judged(it: Run, outcome: Outcome, act: Coroutine[object, object, None]) -> None:
    """The act beside the run, to the end of both."""
    try:
        async with asyncio.timeout(MOST_SECONDS), asyncio.TaskGroup() as group:
            ended = group.create_task(it.ended())
            group.create_task(act)
        outcome.violations += ended.result()
        outcome.violations += await it.removed()
        outcome.log = it.log
    except (Exception, ExceptionGroup) as fault:
        causes = fault.exceptions if isinstance(fault, ExceptionGroup) else (fault,)
        told = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        outcome.violations.append(Violation("terminal", f"the run did not come to its end: {told}"))
    outcome.story = it.story()


async def _first(dead: asyncio.Event, following: "asyncio.Task[None]") -> None:
    """Until the process has died, or the run is at its end without that."""
    dying = asyncio.create_task(dead.wait())
    await asyncio.wait([dying, following], return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
