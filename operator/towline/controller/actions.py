"""What the operator can do for a run, one value each. Decided by `plan.py`, done by `carry_out.py`.

Each may be done twice with the effect of once, and in a list each relies on those before it having succeeded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from towline.controller.seen import OutcomeKind
from towline.kube.pod_status import Ended


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Before the first pod: from then on the run cannot vanish without us."""


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Stores the proposal: the run is accepted, and what it refers to is fixed."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Writes the next epoch into the status, on condition that nothing has changed: the one place where epochs begin.

    `ended` says what became of the harness before; None for the first one.
    """

    epoch: int
    ended: Ended | None = None
    crashed: bool = False
    """Counts towards backoffLimit."""


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Fences every harness before `epoch` in the store, and logs the loss of the last one if it was one."""

    epoch: int
    lost: Ended | None = None


@dataclass(frozen=True, slots=True)
class CreateHarness:
    """Registers the pod with the store, then makes it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RegisterHarness:
    """Registers a pod that there is once more: the store has lost it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Deletes exactly this pod. `grace_seconds` None leaves it the time that its manifest gives."""

    name: str
    uid: str
    harness: bool
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """Tells whoever works on the run to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Writes the terminal event, under an epoch that fences whatever may still run."""

    epoch: int
    kind: OutcomeKind
    """Succeeded only when the log had said so before, and lost it."""
    reason: str
    message: str = ""
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    generation: int


@dataclass(frozen=True, slots=True)
class MarkSandboxReady:
    name: str
    generation: int
    address: str
    milliseconds: int
    """Since it was wanted."""


@dataclass(frozen=True, slots=True)
class MarkSandboxLost:
    name: str
    generation: int
    state: str
    """Lost after it was ready, Failed before."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class MarkSandboxDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class MarkSandboxSuspended:
    """Put away; its workspace is kept."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteWorkspace:
    """The claim that kept the run's workspace, if there is one."""


@dataclass(frozen=True, slots=True)
class ExpireHistory:
    """The run is being deleted: what the store holds of it goes, after a while for those who still read."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Nothing is left that Kubernetes would not collect: takes the finalizer off, and notes when the run may go."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Its time to live has passed."""

    due: datetime


Action = (
    AddFinalizer
    | StoreSnapshot
    | Grant
    | RaiseEpoch
    | CreateHarness
    | RegisterHarness
    | DeletePod
    | RequestCancel
    | Finish
    | CreateSandbox
    | MarkSandboxReady
    | MarkSandboxLost
    | MarkSandboxDeleted
    | MarkSandboxSuspended
    | DeleteWorkspace
    | ExpireHistory
    | Settle
    | DeleteRun
)

HARMLESS = (MarkSandboxReady, RequestCancel)
"""Neither create nor destroy: they may follow from a cached view, all others need a fresh one."""


@dataclass(slots=True)
class Plan:
    """Actions in their order, and when to look again though nothing is heard."""

    actions: list[Action] = field(default_factory=list)
    look_again: timedelta | None = None

    def do(self, *actions: Action) -> None:
        """What two parts of the plan ask for is due once."""
        self.actions += [action for action in actions if action not in self.actions]

    def later(self, delay: timedelta) -> None:
        """Look again after `delay` at the latest."""
        delay = max(delay, timedelta())
        self.look_again = delay if self.look_again is None else min(self.look_again, delay)
