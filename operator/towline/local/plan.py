"""What the launcher does next: a pure function from what it sees to the actions it takes.

Called by `supervise.py` after every change. It is level-triggered: it looks at the state as it is (the run's meta, the
processes, the sandbox), never at what happened before, so a missed or doubled notice changes nothing.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from towline.exit_codes import NO_CRASH, HarnessExit
from towline.local.processes import Exit

CANCEL_GRACE = timedelta(seconds=3)
"""How long a cancelled harness may take to write what it has; then it is killed."""

CRASHES_WITHOUT_PROGRESS = 3
"""A harness that crashes so often at one point of the run would crash there for ever."""

GATEWAY_CRASHES = 5
"""Within one run; a gateway that dies so often is broken, not unlucky."""

DEADLINE_EXCEEDED = "DeadlineExceeded"
SANDBOX_UNAVAILABLE = "SandboxUnavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSeen:
    """The harness process started last."""

    epoch: int
    exit: Exit | None = None
    """None while it runs."""

    @property
    def asleep(self) -> bool:
        """It ended because the run waits for a prompt."""
        return self.exit is not None and self.exit.code == HarnessExit.ASLEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSeen:
    """The sandbox started last, and what the run's record says of it."""

    name: str
    state: Literal["Starting", "Started", "Failed", "Impossible", "Dead"]
    """Failed: a next one may start. Impossible: on this machine none ever will."""
    recorded: bool
    """Whether the run's record names this sandbox in this state already."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The state of a run and of everything the launcher started for it."""

    epoch: int
    closed: bool
    cancel: str | None
    """Reason of a requested cancel."""
    want_sandbox: bool
    sandbox_given_up: bool
    """The want is for the one after it: the gateway has given it up, because it does not answer."""
    """A tool call waits for a sandbox."""
    unread: int = 0
    """Prompts that wait in the inbox."""
    waiting: timedelta = timedelta()
    """Since the run came to rest for want of a prompt."""
    finish_after: timedelta | None = None
    """After so much waiting its harness ends the run; one that sleeps is woken for it."""
    progress: int = 0
    """Seq of the last event that brought the run further."""
    lost_at: tuple[int, ...] = ()
    """That seq at each crash of an earlier harness."""
    backoff_limit: int = 6
    harness: HarnessSeen | None = None
    gateway_running: bool = True
    gateway_crashes: int = 0
    sandbox: SandboxSeen | None = None
    eager_sandbox: bool = False
    stop: str | None = None
    """Why a person wants the run to end (Interrupted, Terminated, …)."""
    impatient: bool = False
    """They asked twice."""
    age: timedelta = timedelta()
    """Since the run was started, without the time that it waited for a prompt."""
    active_deadline: timedelta | None = None
    since_cancel: timedelta = timedelta()
    """Since this launcher saw the cancel."""


@dataclass(frozen=True, slots=True)
class TearDown:
    """The run has its outcome: end everything."""


@dataclass(frozen=True, slots=True)
class RequestCancel:
    reason: str


@dataclass(frozen=True, slots=True)
class KillHarness:
    pass


@dataclass(frozen=True, slots=True)
class Finish:
    """Write the terminal event under the next epoch, which fences whatever may still run."""

    epoch: int
    outcome: Literal["Failed", "Cancelled"]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class RecordHarnessLost:
    """Raises the run's epoch to `epoch`, before a new harness exists."""

    epoch: int
    lost_epoch: int
    exit: Exit
    crashed_at: int | None
    """How far the run had come when it crashed; None when it was no crash, and so does not count."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Raises the epoch of a run that sleeps."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StartHarness:
    epoch: int


@dataclass(frozen=True, slots=True)
class StartGateway:
    pass


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    pass


@dataclass(frozen=True, slots=True)
class RecordSandbox:
    """Write the sandbox's state into the run's record, so that waiting calls go on."""


@dataclass(frozen=True, slots=True)
class ReleaseSandbox:
    """The run sleeps: end the sandbox's processes, and record it."""


Action = (
    TearDown
    | RequestCancel
    | KillHarness
    | Finish
    | RecordHarnessLost
    | Wake
    | StartHarness
    | StartGateway
    | CreateSandbox
    | RecordSandbox
    | ReleaseSandbox
)


def plan(seen: Observed) -> list[Action]:
    """The actions that are due now, in order; empty when the run only has to be waited for."""
    if seen.closed:
        return [TearDown()]
    if seen.cancel is not None:
        return _cancelling(seen, seen.cancel)
    if seen.stop is not None:
        return [RequestCancel(seen.stop)]
    if seen.active_deadline is not None and seen.age >= seen.active_deadline:
        return [RequestCancel(DEADLINE_EXCEEDED)]
    if seen.gateway_crashes >= GATEWAY_CRASHES:
        return [_failed(seen, "GatewayCrashLoop", f"the gateway ended {seen.gateway_crashes} times")]
    gateway: list[Action] = [] if seen.gateway_running else [StartGateway()]
    if seen.harness is not None and seen.harness.asleep and seen.harness.epoch >= seen.epoch:
        return gateway + (_wake(seen) or _asleep(seen))
    return gateway + _harness(seen) + _sandbox(seen)


def _cancelling(seen: Observed, reason: str) -> list[Action]:
    harness_runs = seen.harness is not None and seen.harness.exit is None
    if harness_runs:
        return [KillHarness()] if seen.impatient or seen.since_cancel >= CANCEL_GRACE else []
    if reason == DEADLINE_EXCEEDED:
        return [_failed(seen, DEADLINE_EXCEEDED, "the run took longer than its activeDeadlineSeconds")]
    return [Finish(_next_epoch(seen), "Cancelled", reason)]


def _harness(seen: Observed) -> list[Action]:
    harness = seen.harness
    if harness is None or (harness.exit is not None and harness.epoch < seen.epoch):
        return [StartHarness(seen.epoch)]
    if harness.exit is None:
        return []
    if harness.exit.code == HarnessExit.SEAL_FAILED:
        return [_failed(seen, "SealFailed", "the harness could not seal itself, so it did not start; see its log")]
    if harness.exit.code in NO_CRASH:
        return [RecordHarnessLost(_next_epoch(seen), harness.epoch, harness.exit, None)]
    losses = len(seen.lost_at) + 1
    if (*seen.lost_at, seen.progress)[-CRASHES_WITHOUT_PROGRESS:] == (seen.progress,) * CRASHES_WITHOUT_PROGRESS:
        return [_failed(seen, "CrashLoop", f"the harness ended {losses} times ({harness.exit}), without progress")]
    if losses > seen.backoff_limit:
        return [_failed(seen, "BackoffLimitExceeded", f"the harness ended {losses} times ({harness.exit})")]
    return [RecordHarnessLost(_next_epoch(seen), harness.epoch, harness.exit, seen.progress)]


def _asleep(seen: Observed) -> list[Action]:
    """A run at rest holds no process."""
    if seen.sandbox is None or seen.sandbox.state == "Starting":
        return []
    return [ReleaseSandbox()] if seen.sandbox.recorded else [RecordSandbox()]


def _wake(seen: Observed) -> list[Action]:
    """The next harness, for a prompt or for the end; it finds out itself for which."""
    due = seen.finish_after is not None and seen.waiting >= seen.finish_after
    return [Wake(_next_epoch(seen))] if seen.unread or due else []


def _sandbox(seen: Observed) -> list[Action]:
    sandbox = seen.sandbox
    if sandbox is not None and sandbox.state == "Impossible":
        return [_failed(seen, SANDBOX_UNAVAILABLE, sandbox.message)]
    if sandbox is not None and sandbox.state != "Starting" and not sandbox.recorded:
        return [RecordSandbox()]
    if sandbox is None:
        return [CreateSandbox()] if seen.want_sandbox or seen.eager_sandbox else []
    if not seen.want_sandbox or sandbox.state == "Starting":
        return []
    if sandbox.state == "Started" and not seen.sandbox_given_up:
        return [RecordSandbox()]  # the store has lost what was recorded
    # A new want after a failure or a death is a new call's: it gets a new sandbox.
    return [CreateSandbox()]


def _failed(seen: Observed, reason: str, message: str) -> Finish:
    return Finish(_next_epoch(seen), "Failed", reason, message)


def _next_epoch(seen: Observed) -> int:
    """Above what the store says, which may have lost the last raise, and above what a harness had."""
    return max(seen.epoch, seen.harness.epoch if seen.harness is not None else 0) + 1
