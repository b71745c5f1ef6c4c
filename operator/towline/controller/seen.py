"""What the operator sees of one run at one moment: plain values, from which everything else is computed.

Filled by `observe.py`, read by `plan.py` and `status.py`. Nothing here is remembered from one look to the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from towline.api.snapshot import Snapshot
from towline.clock import moment
from towline.events.event import RunRef
from towline.events.glance import Glance
from towline.kube.pod_status import Ended, Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """The AgentRun itself. `status` is as it was last written, in wire form."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleting_since: datetime | None = None
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    suspend: bool = False
    cancel: bool = False
    cancel_reason: str = ""
    ttl_seconds: int | None = None
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ref(self) -> RunRef:
        return RunRef(self.namespace, self.uid, self.name)

    @property
    def epoch(self) -> int:
        """The epoch that was granted last; 0 before the first."""
        return int(self.status.get("epoch") or 0)

    @property
    def pod_uid(self) -> str:
        """UID of the harness pod of that epoch, once it was seen to exist."""
        return str(self.status.get("harness", {}).get("podUID") or "")

    @property
    def crashes(self) -> int:
        return int(self.status.get("attempt") or 0)

    @property
    def finished(self) -> bool:
        """Whether the status has the outcome, which nothing changes any more."""
        return any(each["type"] == "Finished" and each["status"] == "True" for each in self.conditions)

    @property
    def conditions(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.status.get("conditions") or ())

    def condition(self, kind: str) -> Mapping[str, Any]:
        """One condition as it was last written; empty when it never was."""
        return next((each for each in self.conditions if each["type"] == kind), {})

    @property
    def was_suspended(self) -> bool:
        """As last written, whatever is wished for now."""
        return self.condition("Suspended").get("status") == "True"


REFUSALS = ("QuotaExceeded", "PodRefused", "NameTaken")
"""Reasons of a trouble that comes from the API server, when there is no pod to show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod of ours: a harness by its epoch, a sandbox by its generation."""

    name: str
    uid: str
    run_uid: str
    run_namespace: str = ""
    harness: bool
    number: int
    version: int = 0
    """Its resourceVersion."""
    ip: str = ""
    running: bool = False
    """Its deciding container runs."""
    started: datetime | None = None
    deadline: datetime | None = None
    """Being deleted, and to be gone by then."""
    forced: bool = False
    """Deleted without grace: only somebody's finalizer still holds it."""
    ended: Ended | None = None
    trouble: Trouble | None = None
    """Why it does not start."""

    @property
    def deleting(self) -> bool:
        return self.deadline is not None

    @property
    def alive(self) -> bool:
        """May still act."""
        return self.ended is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of the snapshot bears on decisions; immutable, as the snapshot is."""

    digest: str
    backoff_limit: int
    active_deadline_seconds: int | None
    start_timeout_seconds: int
    eager: bool
    sandbox_provider: str
    has_price: bool
    keeps_workspace: bool = False
    """The workspace outlives the sandbox's pod."""
    storage_class: str = ""
    """Of the volume that keeps it; empty: the cluster's default."""
    lacks_volume: str = ""
    """The class that cannot keep the workspace of a run that asks for it."""
    finish_after_seconds: int | None = None
    """How long the run waits for a prompt before it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One look at everything that belongs to a run."""

    run: RunSeen
    now: datetime
    live: bool = False
    """From the API server as it is now, not from the cache."""
    store: Glance | None
    """None: the event store does not answer."""
    harnesses: tuple[PodSeen, ...] = ()
    sandboxes: tuple[PodSeen, ...] = ()
    facts: Facts | None = None
    """Of the stored snapshot; None when there is none, or it cannot be read now."""
    proposal: Snapshot | None = None
    """What would be stored: every reference was found. Only looked for before there is a snapshot."""
    missing: Trouble | None = None
    """Why there is no proposal; or why what is stored cannot be read."""
    policies_in_force: bool = True
    """The sandbox namespace has its network policies."""
    harness_trouble: Trouble | None = None
    """Why no harness pod could be made, on this look."""
    sandbox_trouble: Trouble | None = None
    """Why no sandbox pod could be made, on this look."""
    since_cancel: timedelta = timedelta()
    """For how long this operator has seen the run being cancelled. Starts anew with the operator, so it only delays."""
    since_absent: timedelta = timedelta()
    """Likewise for a history that the store ought to have and has not."""
    finished_pod_retention: timedelta = timedelta()
    """How long an ended harness pod is kept after the end of its run, for its log."""

    @property
    def accepted(self) -> bool:
        return self.facts is not None or self.proposal is not None or "resolved" in self.run.status

    @property
    def harness(self) -> PodSeen | None:
        """The pod of the granted epoch."""
        return next((pod for pod in self.harnesses if pod.number == self.run.epoch), None)

    @property
    def stored(self) -> bool:
        """The store answers and knows the run."""
        return self.store is not None and not self.store.state.absent

    @property
    def history_lost(self) -> bool:
        """The store answers, and has not what the run began with: its snapshot and its name, stored as one.

        A harness puts back what it wrote itself, so the log of such a run need not be empty. What is remembered of the
        snapshot says nothing here.
        """
        begun = "resolved" in self.run.status or self.run.epoch > 0
        return begun and self.store is not None and not self.store.state.name

    @property
    def known(self) -> Glance | None:
        """What the store has of the run; None when it does not answer, has nothing of it yet, or has lost it."""
        return self.store if self.stored and not self.history_lost else None

    @property
    def awaits_prompt(self) -> bool:
        """The run has answered, and nobody has said anything since."""
        return self.store is not None and bool(self.store.state.waiting) and self.store.state.unread == 0

    @property
    def paused_since(self) -> datetime | None:
        """Since when the deadline stands still; None while it runs.

        The status says so, and the store before the status: a run may have waited for long while nobody could write.
        """
        written = moment(self.run.status.get("pausedSince"))
        if written is not None or self.store is None or not self.awaits_prompt:
            return written
        return min(moment(self.store.state.waiting) or self.now, self.now)


OutcomeKind = Literal["Succeeded", "Failed", "Cancelled"]
