"""On a real cluster of two nodes: how long until a run thinks, until it acts, and what a call costs between pods.

Beside each the bare pod: the time that Kubernetes takes to bring up a pod that does nothing, in the same minutes. It
has one volume, as a harness has its token and a sandbox its workspace: the kubelet looks for a pod's volumes every
300 ms, so the first one costs about that, whatever it is; the pod without any is told in the notes.

Needs root and the programs of `python -m e2e.cluster build`; E2E_CLUSTER and E2E_AS_IS as for the tests
(e2e/settings.py).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

from bench.figure import Figure, Goal, median, quantile
from e2e.installation import SANDBOXES, installed
from e2e.kubectl import Object
from e2e.probe import probing_pod
from e2e.runs import API, Team, call, say
from towline.events.event import Event, RunRef
from towline.events.follow import follow
from towline.events.store import Store
from towline.kube import login
from towline.kube.client import Kube
from towline.kube.kinds import POD

POLL_SECONDS = 0.01
CALLS_A_STEP = 16


async def measure(quick: bool) -> AsyncIterator[Figure]:
    rounds, steps = (2, 2) if quick else (10, 30)
    with installed("bench") as installation:
        team = Team(installation, f"bench-{secrets.token_hex(3)}")
        team.enter()
        kube = Kube(login.client(await login.configuration(installation.kubectl.kubeconfig)), field_manager="bench")
        store = Store.connect(installation.store_url())
        runs = Runs(team, kube, store)
        try:
            async for figure in starts(runs, rounds):
                yield figure
            async for figure in calls(runs, steps):
                yield figure
        finally:
            await store.aclose()
            await kube.aclose()
            installation.tunnel.close()
            team.leave()


class Runs:
    """Makes runs by one request each, and follows their events."""

    def __init__(self, team: Team, kube: Kube, store: Store) -> None:
        self.team, self.kube, self._store = team, kube, store

    def offer(self, name: str, *steps: Object) -> None:
        self.team.installation.kubectl.apply(*self.team.kinds(name, *steps), namespace=self.team.namespace)

    async def events(self, template: str) -> tuple[datetime, list[Event]]:
        """When the run was asked for, and its whole log."""
        metadata = {"name": f"{template}-{secrets.token_hex(3)}", "namespace": self.team.namespace}
        spec = {"prompt": "go", "templateRef": {"name": template}}
        begin = datetime.now(UTC)
        made = await self.kube.create({"apiVersion": API, "kind": "AgentRun", "metadata": metadata, "spec": spec})
        run = RunRef(self.team.namespace, made["metadata"]["uid"], metadata["name"])
        async with asyncio.timeout(120):
            return begin, [event async for event in follow(self._store, run, poll_seconds=0.2)]

    async def bare_pod(self, told: Callable[[Object], bool], *, volume: bool = True) -> float:
        """Seconds until the kubelet tells of a pod of the sandbox image what is asked."""
        pod = probing_pod("sandbox", [], {})
        pod["metadata"]["namespace"] = SANDBOXES
        (container,) = pod["spec"]["containers"]
        container["command"] = ["sleep", "60"]
        if volume:
            pod["spec"]["volumes"] = [{"name": "volume", "emptyDir": {}}]
            container["volumeMounts"] = [{"name": "volume", "mountPath": "/volume"}]
        begin = asyncio.get_running_loop().time()
        await self.kube.create(pod)
        try:
            async with asyncio.timeout(60):
                while True:
                    found = await self.kube.get(POD, SANDBOXES, pod["metadata"]["name"])
                    if found is not None and told(found["status"]):
                        return asyncio.get_running_loop().time() - begin
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            await self.kube.delete(POD, SANDBOXES, pod["metadata"]["name"], grace_seconds=0)


async def starts(runs: Runs, rounds: int) -> AsyncIterator[Figure]:
    """In turn, so that all see the same machine."""
    runs.offer("answer", say("hello"))
    runs.offer("work", call("true"), say("done"))
    thinks, acts, cold, running, ready, plain = [], [], [], [], [], []
    for _ in range(rounds):
        begin, events = await runs.events("answer")
        thinks.append(seconds(begin, first(events, "span.model_request_start")))
        begin, events = await runs.events("work")
        acts.append(seconds(begin, first(events, "agent.tool_result")))
        cold.append(seconds(at(first(events, "agent.tool_use")), first(events, "agent.tool_result")))
        running.append(await runs.bare_pod(is_running))
        ready.append(await runs.bare_pod(is_ready))
        plain.append(await runs.bare_pod(is_running, volume=False))
    floor = ("bare pod Running", median(running))
    beside = f"bare pod Ready {median(ready):.2f} s, without a volume Running {median(plain):.2f} s"
    yield Figure(
        name="cluster_create_to_model_request",
        value=median(thinks),
        unit="s",
        samples=rounds,
        goal=Goal(round(median(running) + 0.6, 2)),
        comparison=floor,
        note=f"cold: no pod, images on the node; at most {max(thinks):.2f} s; {beside}",
    )
    yield Figure(
        name="cluster_first_call_to_result",
        value=median(cold),
        unit="s",
        samples=rounds,
        goal=Goal(round(median(running) + 0.4, 2)),
        comparison=floor,
        note=f"cold sandbox by image volume, network proved; at most {max(cold):.2f} s; {beside}",
    )
    yield Figure(
        name="cluster_create_to_sandbox_result",
        value=median(acts),
        unit="s",
        samples=rounds,
        comparison=("two bare pods Running", 2 * median(running)),
        note=f"harness pod, then sandbox pod; at most {max(acts):.2f} s",
    )


async def calls(runs: Runs, steps: int) -> AsyncIterator[Figure]:
    """One run that calls and calls, from the trusted node to the other one and back."""
    for tool, arguments in (("list_dir", {}), ("exec", {"command": "true"})):
        name = tool.replace("_", "-")
        step = {"toolCalls": [{"name": tool, "arguments": arguments}] * CALLS_A_STEP}
        runs.team.made.append(("modelprovider", f"{runs.team.namespace}-{name}"))
        provider, template = runs.team.kinds(name, *[step] * steps, say("done"), tools=(tool,))
        runs.team.installation.kubectl.apply(provider, template, namespace=runs.team.namespace)
        _, events = await runs.events(name)
        begun = {event.payload["call_id"]: at(event) for event in events if event.type == "agent.tool_use"}
        took = [
            seconds(begun[event.payload["call_id"]], event) * 1000
            for event in events
            if event.type == "agent.tool_result"
        ][1:]  # the first one starts the sandbox
        yield Figure(
            name=f"cluster_call_{tool}",
            value=median(took),
            unit="ms",
            samples=len(took),
            note=f"claimed to settled, pods on two nodes, by the log's milliseconds; p99 {quantile(took, 0.99):.0f} ms",
        )


def first(events: list[Event], kind: str) -> Event:
    return next(event for event in events if event.type == kind)


def at(event: Event) -> datetime:
    return datetime.fromisoformat(event.time)


def seconds(begin: datetime, end: Event) -> float:
    return (at(end) - begin).total_seconds()


def is_running(status: Object) -> bool:
    return any("running" in each["state"] for each in status.get("containerStatuses") or ())


def is_ready(status: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
