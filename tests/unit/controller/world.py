"""A cluster and a store in memory for one run, as far as the plan can tell them from real ones.

What the operator does to them is `act`; what happens to them is a method each. For the tables and the property tests.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from towline.api.snapshot import Model, Snapshot
from towline.clock import rfc3339
from towline.controller.actions import (
    Action,
    AddFinalizer,
    CreateHarness,
    CreateSandbox,
    DeletePod,
    DeleteRun,
    DeleteWorkspace,
    ExpireHistory,
    Finish,
    Grant,
    MarkSandboxDeleted,
    MarkSandboxLost,
    MarkSandboxReady,
    MarkSandboxSuspended,
    Plan,
    RaiseEpoch,
    RegisterHarness,
    RequestCancel,
    Settle,
    StoreSnapshot,
)
from towline.controller.plan import plan
from towline.controller.plan_sleep import finish_at
from towline.controller.seen import Facts, Observed, PodSeen, RunSeen
from towline.controller.status import check, granted, phase_to_tell, status_of
from towline.events.event import Event, RunRef, draft
from towline.events.glance import Glance
from towline.events.log import RunState
from towline.events.sandbox import SandboxRecord
from towline.events.totals import Totals
from towline.exit_codes import HarnessExit
from towline.kube.pod_status import Ended, Trouble
from towline.naming import FINALIZER, harness_pod_name, sandbox_name

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
UID = "0a1b2c3d-0000-4000-8000-000000000001"
POD, NEXT = harness_pod_name(UID, 1), harness_pod_name(UID, 2)
FIRST, SECOND = sandbox_name(UID, 1), sandbox_name(UID, 2)
GRACE = timedelta(seconds=10)
FACTS = Facts(
    digest="sha256:0",
    backoff_limit=2,
    active_deadline_seconds=None,
    start_timeout_seconds=60,
    eager=False,
    sandbox_provider="pod",
    has_price=False,
)
PROPOSAL = Snapshot(
    namespace="team",
    name="hello",
    uid=UID,
    prompt="hi",
    model=Model(api="Scripted", provider="default", name="scripted"),
)


class Interrupted(Exception):
    """The operator was killed before this action."""


@dataclass
class World:
    now: datetime = NOW
    run: RunSeen = field(
        default_factory=lambda: RunSeen(namespace="team", name="hello", uid=UID, resource_version="1", generation=1)
    )
    exists: bool = True
    facts: Facts = FACTS
    stored: bool = False
    state: RunState = field(default_factory=RunState)
    record: SandboxRecord = field(default_factory=SandboxRecord)
    last: Event | None = None
    lost_sandboxes: set[str] = field(default_factory=set)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    registered: bool = False
    """The gateway knows the harness pod of the granted epoch."""
    store_away: bool = False
    missing: Trouble | None = None
    refuses: Trouble | None = None
    """Why the API server makes no pod."""
    refused: bool = False
    policies: bool = True
    cancel_seen: datetime | None = None
    absent_seen: datetime | None = None
    unreadable: Trouble | None = None
    """Why this operator can make nothing of the snapshot."""
    looked: bool = False
    """This operator has read the snapshot, and remembers it whatever becomes of the store."""
    retention: timedelta = timedelta()
    made: list[str] = field(default_factory=list)
    """Names of all pods that were ever made, in order."""
    expired: bool = False
    workspace: bool = False
    """There is a claim that keeps it."""
    phases: list[str] = field(default_factory=list)
    """As the log tells them."""

    # -- what the operator sees --------------------------------------------------------------------------------------

    def seen(self) -> Observed:
        cancelling = self.run.cancel or (not self.store_away and self.state.cancel is not None)
        self.cancel_seen = (self.cancel_seen or self.now) if cancelling else None
        glance = None
        if not self.store_away:
            spec = b"{}" if self.stored else None
            pod = self.pods.get(self.harness)
            registered = self.registered or pod is None or not pod.alive
            glance = Glance(self.state, self.record, self.last, spec, registered)
        self.looked = self.looked or (self.stored and not self.store_away)
        known = self.facts if self.looked and self.unreadable is None else None
        undecided = known is None and "resolved" not in self.run.status
        seen = Observed(
            run=self.run,
            now=self.now,
            store=glance,
            harnesses=tuple(pod for pod in self.pods.values() if pod.harness),
            sandboxes=tuple(pod for pod in self.pods.values() if not pod.harness),
            facts=known,
            proposal=PROPOSAL if undecided and self.missing is None else None,
            missing=self.missing if undecided else self.unreadable,
            policies_in_force=self.policies,
            harness_trouble=self.refuses if self.refused else None,
            since_cancel=self.now - (self.cancel_seen or self.now),
            finished_pod_retention=self.retention,
        )
        self.absent_seen = (self.absent_seen or self.now) if seen.history_lost else None
        return replace(seen, since_absent=self.now - (self.absent_seen or self.now))

    def plan(self) -> Plan:
        return plan(self.seen())

    # -- what the operator does --------------------------------------------------------------------------------------

    def reconcile(self, *, dies_before: int | None = None) -> list[Action]:
        """One look, as `reconcile.py` has it: the actions, then the status. May be killed before the n-th action."""
        self.refused = False
        actions = self.plan().actions
        for number, action in enumerate(actions):
            if number == dies_before:
                self.operator_dies()
                return actions
            if not self.act(action):
                break
        self.told()
        if self.exists and not (self.run.deleting_since and not self.run.finalizers):
            self.write(status_of(self.seen()))
        return actions

    def told(self) -> None:
        """A new phase is in the log before it is in the status."""
        seen = self.seen()
        if (news := phase_to_tell(seen, status_of(seen))) is not None:
            self.phases.append(news[0])
            self._event("run.status")
            self.state = replace(self.state, phase=news[0])

    def settle(self, looks: int = 12) -> None:
        """Looks until there is nothing to do, and nothing new to tell."""
        for _ in range(looks):
            before = self.run.status
            if not self.reconcile() and self.run.status == before:
                return
        raise AssertionError(f"still something to do: {self.plan().actions}")

    def write(self, status: dict[str, Any]) -> None:
        """What the API server would refuse, this does."""
        check(status)
        assert status.get("epoch", 0) >= self.run.epoch, "the epoch never falls"
        if self.run.finished:
            assert status["phase"] == self.run.status["phase"], "an outcome is written once"
        if status != self.run.status:
            self.run = replace(self.run, status=status, resource_version=str(int(self.run.resource_version) + 1))

    def act(self, action: Action) -> bool:
        """False when it failed, which ends the list."""
        if isinstance(action, _NEEDS_STORE) and self.store_away:
            return False
        match action:
            case AddFinalizer():
                self.run = replace(self.run, finalizers=(*self.run.finalizers, FINALIZER))
            case StoreSnapshot():
                if not self.stored:
                    self.stored, self.state = True, RunState(epoch=1, head=1, name="hello")
                    self._event("run.started")
            case Grant(epoch, ended, crashed):
                self.registered = False
                status = granted(self.seen(), epoch, ended, crashed)
                self.write(status_of(replace(self.seen(), run=replace(self.run, status=status))))
            case RaiseEpoch(epoch, lost):
                assert epoch >= self.state.epoch, "nobody goes back"
                if epoch > self.state.epoch and lost is not None:
                    self._event("harness.lost")
                self.state = replace(self.state, epoch=epoch)
            case CreateHarness(epoch):
                assert self.state.epoch == epoch == self.run.epoch, "granted and raised before"
                assert FINALIZER in self.run.finalizers, "no pod without the finalizer"
                self.registered = True
                if self.refuses is None:
                    self._make(harness_pod_name(UID, epoch), True, epoch)
                else:
                    self.refused = True
            case RegisterHarness(epoch):
                assert epoch == self.run.epoch, "for the granted epoch"
                self.registered = True
            case DeletePod(name, uid, _, grace):
                pod = self.pods[name]
                assert pod.uid == uid
                if grace == 0 or pod.ended is not None:
                    del self.pods[name]
                else:
                    self.pods[name] = replace(pod, deadline=self.now + GRACE)
            case RequestCancel(reason):
                assert self.state.epoch, "the store refuses it for a run that it does not know"
                self.state = replace(self.state, cancel=self.state.cancel or reason)
            case Finish(epoch, kind, reason, message, result):
                if self.state.closed is None:
                    assert epoch > self.state.epoch, "the end fences"
                    self.state = replace(self.state, epoch=epoch)
                    if kind == "Succeeded":
                        self.close("run.completed", {"result": result})
                    elif kind == "Cancelled":
                        self.close("run.cancelled", {"reason": reason})
                    else:
                        self.close("run.failed", {"reason": reason, "message": message})
            case CreateSandbox(generation):
                assert self.policies, "no sandbox without policies"
                assert sandbox_name(UID, generation) not in self.lost_sandboxes, "a name is used for one sandbox only"
                if self.refuses is None:
                    self.workspace = self.workspace or self.facts.keeps_workspace
                    self._make(sandbox_name(UID, generation), False, generation)
            case MarkSandboxReady(name, generation, address, _):
                assert name not in self.lost_sandboxes
                self.record = SandboxRecord(name, "Ready", address, "pod", generation=generation)
                self.state = replace(self.state, want="")
            case MarkSandboxLost(name, generation, state, reason, message):
                self.lost_sandboxes.add(name)
                generation = max(generation, self.record.generation)
                self.record = replace(
                    self.record,
                    name=name,
                    state=state,
                    address="",
                    reason=reason,
                    message=message,
                    generation=generation,
                )
                self.state = replace(self.state, want="")
            case MarkSandboxDeleted(name):
                self.record = replace(self.record, state="Deleted", address="")
            case MarkSandboxSuspended():
                assert self.facts.keeps_workspace
                self.record = replace(self.record, state="Suspended", address="")
            case DeleteWorkspace():
                assert all(pod.harness or pod.deleting for pod in self.pods.values()), "nothing mounts it"
                self.workspace = False
            case ExpireHistory():
                self.expired = True
            case Settle(annotations):
                left = tuple(each for each in self.run.finalizers if each != FINALIZER)
                kept = {k: v for k, v in {**self.run.annotations, **annotations}.items() if v is not None}
                self.run = replace(self.run, finalizers=left, annotations=kept)
                self.exists = self.run.deleting_since is None
            case DeleteRun():
                self.delete()
        return True

    # -- what happens ------------------------------------------------------------------------------------------------

    def operator_dies(self) -> None:
        """What it remembered dies with it."""
        self.looked, self.cancel_seen, self.absent_seen = False, None, None

    def store_is_emptied(self) -> None:
        self.stored, self.state, self.record, self.last = False, RunState(), SandboxRecord(), None
        self.registered = False

    def store_loses_the_end(self) -> None:
        """A failover to a replica that had not heard of it yet."""
        if self.state.closed is not None:
            self.state, self.last = replace(self.state, closed=None, head=self.state.head - 1), None

    def puts_its_tail_back(self) -> None:
        """A harness that outlives an emptied store appends what it kept; the snapshot and the name it never had."""
        if not self.stored and (pod := self.pods.get(self.harness)) and pod.running:
            self.state = replace(self.state, epoch=max(self.state.epoch, self.run.epoch))
            self._event("turn.started")

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for name, pod in list(self.pods.items()):
            if pod.deadline is not None and pod.deadline <= self.now and not pod.name.endswith("stuck"):
                del self.pods[name]

    def starts(self, name: str, ip: str = "10.0.0.7") -> None:
        if (pod := self.pods.get(name)) and pod.ended is None and not pod.deleting:
            self.pods[name] = replace(pod, running=True, ip=ip, started=self.now, trouble=None)

    def ends(self, name: str, code: int = 1, reason: str = "Error", disruption: bool = False) -> None:
        if (pod := self.pods.get(name)) and pod.ended is None:
            ended = Ended(reason=reason, exit_code=code, at=self.now, disruption=disruption)
            self.pods[name] = replace(pod, running=False, ended=ended)

    def vanishes(self, name: str) -> None:
        self.pods.pop(name, None)

    def wants(self) -> None:
        if self.stored and self.state.closed is None and self.record.state != "Ready" and not self.state.want:
            self.state = replace(self.state, want="sandbox")
            generation = self.record.generation + 1
            self.record = SandboxRecord(state="Starting", generation=generation)

    def waits(self) -> None:
        """The harness has answered, and there is no other prompt."""
        if self.stored and self.state.closed is None and self.state.unread == 0 and not self.state.waiting:
            self._event("turn.waiting")
            self.state = replace(self.state, waiting=rfc3339(self.now))

    def is_prompted(self) -> None:
        if self.stored and self.state.closed is None:
            self.state = replace(self.state, inbox_head=self.state.inbox_head + 1)

    def takes_a_turn(self) -> None:
        """The harness takes every prompt there is."""
        if self.stored and self.state.closed is None:
            self._event("turn.started")
            totals = replace(self.state.totals, prompts=self.state.inbox_head)
            self.state = replace(self.state, waiting="", progress=self.state.head, totals=totals)

    def works(self) -> None:
        """What a harness that runs does in a while: answers what it is asked, ends what is due."""
        if not (pod := self.pods.get(self.harness)) or not pod.running or pod.deleting or self.state.closed:
            return
        if self.state.unread:
            self.takes_a_turn()
            self.waits()
        elif (due := finish_at(self.seen())) is not None and due <= self.now:
            self.completes()
            self.ends(self.harness, 0, "Completed")
        elif self.state.waiting:
            self.ends(self.harness, HarnessExit.ASLEEP)

    def with_totals(self, totals: Totals) -> RunState:
        return replace(self.state, totals=totals)

    def close(self, kind: str, data: dict[str, Any]) -> None:
        if not self.state.absent and self.state.closed is None:
            self._event(kind, data)
            self.state = replace(self.state, closed=kind, want="")

    def completes(self) -> None:
        self.close("run.completed", {"result": {"text": "done", "truncated": False, "sha256": ""}})

    def delete(self) -> None:
        if self.run.finalizers:
            self.run = replace(self.run, deleting_since=self.run.deleting_since or self.now)
        else:
            self.exists = False

    def set(self, **spec: Any) -> None:
        self.run = replace(self.run, generation=self.run.generation + 1, **spec)

    @property
    def harness(self) -> str:
        return harness_pod_name(UID, self.run.epoch)

    def _make(self, name: str, harness: bool, number: int) -> None:
        if name not in self.pods:
            self.made.append(name)
            self.pods[name] = PodSeen(
                name=name, uid=f"{name}-{len(self.made)}", run_uid=UID, harness=harness, number=number, version=1
            )

    def _event(self, kind: str, data: dict[str, Any] | None = None) -> None:
        made = draft(kind, data or {}, now=self.now)
        ref = RunRef("team", UID, "hello")
        self.state = replace(self.state, head=self.state.head + 1)
        self.last = Event(self.state.head, made.id, kind, ref, None, made.time, "operator", self.state.epoch, made.data)


_NEEDS_STORE = (
    *(StoreSnapshot, RaiseEpoch, CreateHarness, RegisterHarness, RequestCancel, Finish),
    *(CreateSandbox, MarkSandboxReady, MarkSandboxLost, MarkSandboxDeleted, MarkSandboxSuspended, ExpireHistory),
)


def working() -> World:
    """A run whose first harness runs; nothing is due."""
    world = World()
    world.settle()
    world.starts(POD)
    world.settle()
    return world


def with_sandbox() -> World:
    """…and whose first sandbox is ready."""
    world = working()
    world.wants()
    world.settle()
    world.starts(FIRST)
    world.settle()
    return world


def actions(world: World) -> list[Action]:
    return world.plan().actions


def kinds(world: World) -> list[type[Action]]:
    return [type(action) for action in actions(world)]
