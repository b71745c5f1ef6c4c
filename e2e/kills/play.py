"""One run on the cluster, from its creation to the record of everything that was seen of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.installation import HARNESSES, SANDBOXES
from e2e.kills.stage import Stage
from e2e.kills.traces import EFFECTS, GO, Traces
from e2e.kubectl import Object
from e2e.runs import API
from tests.durability.clients import Follower, acknowledged
from towline.events.event import Event, RunRef
from towline.events.log import EventLog
from towline.kube.kinds import AGENT_RUN, POD
from towline.naming import RUN_UID_LABEL
from towline.testing.checker import Recorded, Violation, check

ORDERS = ("w1", "w2", "w3")
TEXT = "A few words, so that the answer comes in pieces."
SLOW = "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"
HELD = f"for i in $(seq 1200); do [ -e {GO} ] && break; echo tick; sleep 0.1; done"
"""Runs until `Traces.let_go`, so that a process can be replaced meanwhile, however long that takes."""
GONE_SECONDS = 120.0


def executes(word: str, then: str = "") -> Object:
    """A tool use that leaves its word behind, and does something more."""
    command = f"echo {word} >> {EFFECTS}"
    return {"name": "exec", "arguments": {"command": f"{command}; {then}" if then else command}}


def script(then: str, milliseconds: int) -> list[Object]:
    """An answer with a call, one with two, the first of which does `then`, and the last one."""
    first, second, third = ORDERS
    return [
        {"text": TEXT, "toolCalls": [executes(first)], "chunkMilliseconds": milliseconds},
        {"text": "", "toolCalls": [executes(second, then), executes(third)]},
        {"text": "Done."},
    ]


TEMPLATES = {"quick": script(SLOW, 30), "slow": script(SLOW, 300), "held": script(HELD, 100)}


def offer(stage: Stage) -> None:
    """The templates, in the namespace of the runs."""
    for name, steps in TEMPLATES.items():
        stage.installation.kubectl.apply(*stage.team.kinds(name, *steps), namespace=stage.team.namespace)


@dataclass
class Run:
    stage: Stage
    ref: RunRef
    follower: Follower
    traces: Traces
    following: "asyncio.Task[None]"
    watching: "asyncio.Task[None]"
    log: list[Event] = field(default_factory=list)
    """All of it, once it has ended."""

    async def ended(self) -> list[Violation]:
        """Once it has, all that is wrong with it: the log, its effects, its status, and its sandbox."""
        await self.following
        phase = await self.stage.until("the status tells the end", self._final_phase)
        left = await self._left(SANDBOXES)
        if self.watching.done():
            self.watching.result()
        recorded = await self._recorded()
        self.log = list(recorded.log)
        violations = [*check(recorded), *left]
        if (end := self.log[-1].type, phase) != ("run.completed", "Succeeded"):
            violations.append(Violation("terminal", f"{end}, phase {phase}"))
        return violations

    async def removed(self) -> list[Violation]:
        """Delete it; what does not go."""
        await self.stage.kube.delete(AGENT_RUN, self.ref.namespace, self.ref.name)
        return await self._left(HARNESSES, SANDBOXES)

    def story(self) -> str:
        """For a person who looks into a violation."""
        logs = [line.decode(errors="replace")[:400] for line in self.traces.log_lines()][-40:]
        return "\n".join([*self.follower.story(), f"effects {self.traces.effects()}", *logs])

    async def _status(self) -> Object:
        return dict((await self.stage.kube.get(AGENT_RUN, self.ref.namespace, self.ref.name) or {}).get("status") or {})

    async def _final_phase(self) -> str | None:
        status = await self._status()
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        return str(status["phase"]) if conditions.get("Finished") == "True" else None

    async def _recorded(self) -> Recorded:
        return Recorded(
            log=await EventLog(self.stage.store, self.ref).all(),
            replay=await EventLog(self.stage.second_store, self.ref).all(),
            seen=self.follower.seen,
            acknowledged=set(acknowledged(self.traces.log_lines())),
            effects=self.traces.effects(),
            orders=ORDERS,
        )

    async def _left(self, *namespaces: str) -> list[Violation]:
        """Pods of it that do not go."""
        kube, labels = self.stage.kube, f"{RUN_UID_LABEL}={self.ref.uid}"

        async def none() -> bool:
            return not any([await kube.list(POD, each, labels=labels) for each in namespaces])

        try:
            await self.stage.until(f"no pod is left in {', '.join(namespaces)}", none, GONE_SECONDS)
        except TimeoutError as fault:
            return [Violation("terminal", str(fault))]
        return []


@asynccontextmanager
async def run(stage: Stage, name: str, template: str) -> AsyncIterator[Run]:
    """A run that has just been asked for; afterwards nobody watches it any more."""
    metadata = {"name": name, "namespace": stage.team.namespace}
    spec: dict[str, Any] = {"prompt": "Go.", "templateRef": {"name": template}}
    made = await stage.kube.create({"apiVersion": API, "kind": "AgentRun", "metadata": metadata, "spec": spec})
    ref = RunRef(stage.team.namespace, made["metadata"]["uid"], name)
    follower, traces = Follower(stage.store, ref, stage.notices), Traces(stage.cluster, ref.uid)
    following, watching = asyncio.create_task(follower.follow()), asyncio.create_task(traces.watch())
    try:
        yield Run(stage, ref, follower, traces, following, watching)
    finally:
        for task in (following, watching):
            task.cancel()
        await asyncio.gather(following, watching, return_exceptions=True)
        traces.close()
