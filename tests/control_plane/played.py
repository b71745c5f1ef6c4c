"""One run on a stage: what is seen of it from outside, and the parts of kubelet, harness and gateway in it."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from towline.clock import utc_now
from towline.controller.status import seconds
from towline.events import sandbox as records
from towline.events.appender import Appender
from towline.events.event import Event, RunRef, draft
from towline.events.log import EventLog, RunState
from towline.events.sandbox import SandboxRecord
from towline.events.totals import Totals
from towline.kube.client import Object
from towline.kube.kinds import AGENT_RUN, POD
from towline.naming import RUN_UID_LABEL, feed_key, harness_pod_name, sandbox_name

if TYPE_CHECKING:
    from tests.control_plane.stage import Stage

BOUND = 15.0  # seconds


@dataclass
class Played:
    """One AgentRun, seen from outside, and what kubelet, harness and gateway do about it."""

    stage: "Stage"
    name: str
    uid: str

    @property
    def ref(self) -> RunRef:
        return RunRef(self.stage.namespace, self.uid, self.name)

    async def get(self) -> Object | None:
        return await self.stage.kube.get(AGENT_RUN, self.stage.namespace, self.name)

    async def status(self) -> Object:
        obj = await self.get()
        assert obj is not None, f"run {self.name} is gone"
        return dict(obj.get("status") or {})

    async def state(self) -> RunState:
        return await EventLog(self.stage.store, self.ref).state()

    async def events(self) -> list[str]:
        """Types of the log's events, but for the operator's words about phases: see `phases`."""
        return [event.type for event in await self.log() if event.type != "run.status"]

    async def phases(self) -> list[str]:
        """As the log tells them."""
        return [event.payload["phase"] for event in await self.log() if event.type == "run.status"]

    async def feed(self) -> list[tuple[int, str]]:
        """Seq and type of what the namespace's feed has of the run."""
        entries = await self.stage.store.client.xrange(feed_key(self.stage.namespace))
        ours = [fields for _, fields in entries if fields[b"run"] == self.uid.encode()]
        return [(int(fields[b"seq"]), fields[b"type"].decode()) for fields in ours]

    async def change(self, **spec: Any) -> None:
        path = AGENT_RUN.path(self.stage.namespace, self.name)
        await self.stage.kube._write("PATCH", path, {"spec": spec}, "application/merge-patch+json")

    async def delete(self) -> None:
        await self.stage.kube.delete(AGENT_RUN, self.stage.namespace, self.name)

    async def until_phase(self, phase: str, bound: float = BOUND) -> Object:
        async def reached() -> Object | None:
            status = await self.status()
            return status if status.get("phase") == phase else None

        return await self.stage.until(reached, f"{self.name} is {phase}", bound)

    async def until_condition(self, kind: str, status: str, reason: str = "", bound: float = BOUND) -> Object:
        async def holds() -> Object | None:
            for each in (await self.status()).get("conditions") or ():
                if each["type"] == kind and each["status"] == status and reason in ("", each["reason"]):
                    return dict(each)
            return None

        return await self.stage.until(holds, f"{self.name} has {kind}={status} {reason}", bound)

    async def until(self, condition: Callable[[Object], bool], bound: float = BOUND) -> Object:
        async def holds() -> Object | None:
            status = await self.status()
            return status if status and condition(status) else None

        return await self.stage.until(holds, f"the status of {self.name} is as expected", bound)

    async def until_settled(self) -> None:
        async def settled() -> bool:
            obj = await self.get()
            return obj is not None and not obj["metadata"].get("finalizers")

        await self.stage.until(settled, f"{self.name} has no finalizer")

    async def until_gone(self, bound: float = BOUND) -> None:
        async def gone() -> bool:
            obj = await self.get()
            return obj is None or obj["metadata"]["uid"] != self.uid

        await self.stage.until(gone, f"{self.name} is gone", bound)

    # -- pods --------------------------------------------------------------------------------------------------------

    async def pods(self, namespace: str) -> list[Object]:
        return await self.stage.kube.list(POD, namespace, labels=f"{RUN_UID_LABEL}={self.uid}")

    async def harness(self, epoch: int = 1, bound: float = BOUND) -> Object:
        name = harness_pod_name(self.uid, epoch)
        return await self.stage.until(
            lambda: self.stage.kube.get(POD, self.stage.harness, name), f"harness pod {name}", bound
        )

    async def harness_is_deleted(self, epoch: int = 1) -> None:
        async def deleted() -> bool:
            pod = await self.stage.kube.get(POD, self.stage.harness, harness_pod_name(self.uid, epoch))
            return pod is None or "deletionTimestamp" in pod["metadata"]

        await self.stage.until(deleted, f"the harness pod of {self.name} is being deleted")

    async def sandbox(self, generation: int = 1) -> Object:
        name = sandbox_name(self.uid, generation)
        return await self.stage.until(lambda: self.stage.kube.get(POD, self.stage.sandboxes, name), f"pod {name}")

    async def play(self, pod: Object, **status: Any) -> None:
        """Writes a pod's status, as its kubelet would."""
        metadata = pod["metadata"]
        path = POD.path(metadata["namespace"], metadata["name"], "status")
        await self.stage.kube._write("PATCH", path, {"status": status}, "application/merge-patch+json")

    async def runs(self, pod: Object, ip: str = "10.1.2.3") -> None:
        state = {"running": {"startedAt": seconds(utc_now())}}
        await self.play(pod, phase="Running", podIP=ip, podIPs=[{"ip": ip}], containerStatuses=[_container(pod, state)])

    async def ends(self, pod: Object, code: int = 0, reason: str = "", *, by_node: str = "", **status: Any) -> None:
        """`reason` is the container's; `by_node` the pod's own, when it was the node that ended it."""
        now = seconds(utc_now())
        reason = reason or ("Completed" if code == 0 else "Error")
        ended = {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}
        phase = "Succeeded" if code == 0 else "Failed"
        status |= {"reason": by_node} if by_node else {}
        await self.play(pod, phase=phase, containerStatuses=[_container(pod, {"terminated": ended})], **status)

    async def waits(self, pod: Object, reason: str, message: str) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        await self.play(pod, phase="Pending", containerStatuses=[_container(pod, state)])

    async def vanishes(self, pod: Object) -> None:
        metadata = pod["metadata"]
        await self.stage.kube.delete(POD, metadata["namespace"], metadata["name"], grace_seconds=0)

    async def no_pods(self) -> None:
        async def none() -> bool:
            return not await self.pods(self.stage.harness) and not await self.pods(self.stage.sandboxes)

        await self.stage.until(none, "no pod is left")

    # -- harness and gateway -----------------------------------------------------------------------------------------

    def appender(self, epoch: int = 1) -> Appender:
        return Appender(self.stage.store, self.ref, src="harness", epoch=epoch, nonce=secrets.token_hex(4))

    async def completes(self, epoch: int = 1, text: str = "hello") -> None:
        """Writes what a harness would, to the end."""
        log, now = self.appender(epoch), utc_now()
        await log.append([draft("harness.started", {"kind": "native", "version": "0", "epoch": epoch}, now=now)])
        await log.append(
            [draft("turn.started", {"prompt_ids": ["0-0"]}, now=now)],
            Totals(turns=1, input_tokens=12, output_tokens=3),
        )
        result = {"text": text, "truncated": False, "sha256": "0" * 64}
        data = {"result": result, "usage": {}, "cost_micro_usd": 0, "turns": 1, "tool_calls": 0}
        await log.finish(draft("run.completed", data, now=now))

    async def fails(self, reason: str, message: str, epoch: int = 1) -> None:
        failed = draft("run.failed", {"reason": reason, "message": message}, now=utc_now())
        await self.appender(epoch).finish(failed)

    async def end_is_lost(self) -> None:
        """As by a failover to a replica that had not heard of the last event yet."""
        client, keys = self.stage.store.client, self.ref.keys
        *left, _ = await client.xrange(keys.log)
        await client.delete(keys.log)
        for entry_id, fields in left:
            await client.xadd(keys.log, fields, id=entry_id)
        await client.hset(keys.meta, "head", str(len(left)))
        await client.hdel(keys.meta, "closed", "terminal")

    async def busy(self, events: int, seconds: float, epoch: int = 1) -> None:
        """A stream of events, spread over a time."""
        log = self.appender(epoch)
        for number in range(events):
            await log.append([draft("turn.completed", {"stop_reason": str(number)}, now=utc_now())])
            await asyncio.sleep(seconds / events)

    async def log(self) -> list[Event]:
        return await EventLog(self.stage.store, self.ref).all()

    async def wants_sandbox(self, call: str = "tc_1") -> SandboxRecord:
        return await records.want(self.stage.store, self.ref, call, now=utc_now())

    async def until_record(self, state: str) -> SandboxRecord:
        async def reached() -> SandboxRecord | None:
            record = await records.read(self.stage.store, self.ref)
            return record if record.state == state else None

        found: SandboxRecord = await self.stage.until(reached, f"the sandbox record is {state}")
        return found


def _container(pod: Object, state: Object) -> Object:
    name = pod["spec"]["containers"][0]["name"]
    return {
        "name": name,
        "image": "localhost/none:1",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


async def working(stage: "Stage", name: str = "hello", **spec: object) -> Played:
    """A run whose first harness runs."""
    run = await stage.run(name, **spec)
    await run.runs(await run.harness())
    await run.until_phase("Running")
    return run


async def ready_sandbox(stage: "Stage", run: Played, generation: int = 1) -> dict[str, object]:
    """The pod of a sandbox that a call wanted and that takes calls now."""
    await run.wants_sandbox()
    pod = await run.sandbox(generation)
    await run.runs(pod)
    await run.until_record("Ready")
    return pod
