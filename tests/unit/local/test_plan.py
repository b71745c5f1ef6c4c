"""The launcher's decisions, by value: what is seen, and what is due."""

from dataclasses import replace
from datetime import timedelta

import pytest

from towline.exit_codes import NO_CRASH, HarnessExit
from towline.local.plan import (
    CANCEL_GRACE,
    Action,
    CreateSandbox,
    Finish,
    HarnessSeen,
    KillHarness,
    Observed,
    RecordHarnessLost,
    RecordSandbox,
    ReleaseSandbox,
    RequestCancel,
    SandboxSeen,
    StartGateway,
    StartHarness,
    TearDown,
    Wake,
    plan,
)
from towline.local.processes import Exit

RUNNING = HarnessSeen(epoch=1)
CRASHED = Exit(1)
KILLED = Exit(None, 9)
FAR, FARTHER = 8, 15

QUIET = Observed(
    epoch=1, closed=False, cancel=None, want_sandbox=False, sandbox_given_up=False, progress=FAR, harness=RUNNING
)
"""A run that works: nothing is due."""

ASLEEP = replace(QUIET, harness=HarnessSeen(epoch=1, exit=Exit(HarnessExit.ASLEEP)))
"""A run that waits for a prompt without a harness."""

READY = SandboxSeen(name="sandbox-a-1", state="Started", recorded=True)

TABLE: dict[str, tuple[Observed, list[Action]]] = {
    "a run that works is left alone": (QUIET, []),
    "at the start the gateway comes up before the harness": (
        replace(QUIET, harness=None, gateway_running=False),
        [StartGateway(), StartHarness(1)],
    ),
    "a dead gateway is replaced": (replace(QUIET, gateway_running=False), [StartGateway()]),
    "a gateway that dies again and again fails the run": (
        replace(QUIET, gateway_running=False, gateway_crashes=5),
        [Finish(2, "Failed", "GatewayCrashLoop", "the gateway ended 5 times")],
    ),
    "a lost harness is recorded, which raises the epoch": (
        replace(QUIET, harness=HarnessSeen(epoch=1, exit=KILLED)),
        [RecordHarnessLost(2, 1, KILLED, FAR)],
    ),
    "only under the raised epoch does a new harness start": (
        replace(QUIET, epoch=2, harness=HarnessSeen(epoch=1, exit=KILLED), lost_at=(FAR,)),
        [StartHarness(2)],
    ),
    "an epoch that the store has lost is not granted again": (
        replace(QUIET, harness=HarnessSeen(epoch=4, exit=KILLED)),
        [RecordHarnessLost(5, 4, KILLED, FAR)],
    ),
    "a harness that somebody else fenced is left to end by itself": (replace(QUIET, epoch=2), []),
    "a harness that exits with 0 and left no outcome is lost too": (
        replace(QUIET, harness=HarnessSeen(epoch=1, exit=Exit(0))),
        [RecordHarnessLost(2, 1, Exit(0), FAR)],
    ),
    "the third crash at one point fails the run": (
        replace(QUIET, epoch=3, harness=HarnessSeen(epoch=3, exit=CRASHED), lost_at=(FAR, FAR)),
        [Finish(4, "Failed", "CrashLoop", "the harness ended 3 times (exit code 1), without progress")],
    ),
    "progress between crashes keeps the run alive": (
        replace(QUIET, epoch=3, harness=HarnessSeen(epoch=3, exit=CRASHED), lost_at=(FAR, FAR), progress=FARTHER),
        [RecordHarnessLost(4, 3, CRASHED, FARTHER)],
    ),
    "more crashes than backoffLimit fail the run": (
        replace(QUIET, epoch=2, harness=HarnessSeen(epoch=2, exit=CRASHED), lost_at=(2,), backoff_limit=1),
        [Finish(3, "Failed", "BackoffLimitExceeded", "the harness ended 2 times (exit code 1)")],
    ),
    "with backoffLimit 0 the first crash fails the run": (
        replace(QUIET, harness=HarnessSeen(epoch=1, exit=KILLED), backoff_limit=0),
        [Finish(2, "Failed", "BackoffLimitExceeded", "the harness ended 1 times (signal 9)")],
    ),
    "a harness that cannot seal itself is not tried again": (
        replace(QUIET, harness=HarnessSeen(epoch=1, exit=Exit(13))),
        [Finish(2, "Failed", "SealFailed", "the harness could not seal itself, so it did not start; see its log")],
    ),
    "a harness that sleeps is left asleep": (ASLEEP, []),
    "a prompt wakes it, which raises the epoch": (replace(ASLEEP, unread=1), [Wake(2)]),
    "once the epoch is raised, the next harness starts": (
        replace(ASLEEP, epoch=2, unread=1),
        [StartHarness(2)],
    ),
    "it is woken for its end": (
        replace(ASLEEP, waiting=timedelta(seconds=60), finish_after=timedelta(seconds=60)),
        [Wake(2)],
    ),
    "not before": (replace(ASLEEP, waiting=timedelta(seconds=59), finish_after=timedelta(seconds=60)), []),
    "a harness that still waits for a prompt finishes the run itself": (
        replace(QUIET, waiting=timedelta(seconds=60), finish_after=timedelta(seconds=60)),
        [],
    ),
    "a sandbox that the gateway has given up is replaced": (
        replace(QUIET, sandbox=READY, want_sandbox=True, sandbox_given_up=True),
        [CreateSandbox()],
    ),
    "one whose record the store has lost is recorded again": (
        replace(QUIET, sandbox=READY, want_sandbox=True),
        [RecordSandbox()],
    ),
    "while the run sleeps its sandbox is released": (replace(ASLEEP, sandbox=READY), [ReleaseSandbox()]),
    "a dead one too, after its death was told": (
        replace(ASLEEP, sandbox=replace(READY, state="Dead", recorded=False)),
        [RecordSandbox()],
    ),
    "one that still starts is waited for": (
        replace(ASLEEP, sandbox=replace(READY, state="Starting", recorded=False)),
        [],
    ),
    "a prompt that is there already spares the sandbox": (replace(ASLEEP, unread=1, sandbox=READY), [Wake(2)]),
    "an eager sandbox is not made while the run sleeps": (replace(ASLEEP, eager_sandbox=True), []),
    "a run that sleeps keeps its gateway": (replace(ASLEEP, gateway_running=False), [StartGateway()]),
    "a run that sleeps can be cancelled": (replace(ASLEEP, stop="Interrupted"), [RequestCancel("Interrupted")]),
    "and ends at once": (replace(ASLEEP, cancel="Interrupted"), [Finish(2, "Cancelled", "Interrupted")]),
    "a wanted sandbox is made": (replace(QUIET, want_sandbox=True), [CreateSandbox()]),
    "an eager sandbox is made unasked": (replace(QUIET, eager_sandbox=True), [CreateSandbox()]),
    "a sandbox that is starting is waited for": (
        replace(QUIET, want_sandbox=True, sandbox=replace(READY, state="Starting", recorded=False)),
        [],
    ),
    "a started sandbox is recorded": (
        replace(QUIET, want_sandbox=True, sandbox=replace(READY, recorded=False)),
        [RecordSandbox()],
    ),
    "a sandbox that did not start is recorded": (
        replace(QUIET, want_sandbox=True, sandbox=replace(READY, state="Failed", recorded=False)),
        [RecordSandbox()],
    ),
    "a sandbox that this machine can never make fails the run": (
        replace(
            QUIET,
            want_sandbox=True,
            sandbox=replace(READY, state="Impossible", recorded=False, message="no user namespaces"),
        ),
        [Finish(2, "Failed", "SandboxUnavailable", "no user namespaces")],
    ),
    "a dead sandbox is recorded before anything is wanted anew": (
        replace(QUIET, sandbox=replace(READY, state="Dead", recorded=False)),
        [RecordSandbox()],
    ),
    "a dead sandbox is not replaced until a call wants one": (replace(QUIET, sandbox=replace(READY, state="Dead")), []),
    "an eager one neither": (replace(QUIET, eager_sandbox=True, sandbox=replace(READY, state="Dead")), []),
    "the next want after a death makes a new one": (
        replace(QUIET, want_sandbox=True, sandbox=replace(READY, state="Dead")),
        [CreateSandbox()],
    ),
    "the next want after a failure makes a new one": (
        replace(QUIET, want_sandbox=True, sandbox=replace(READY, state="Failed")),
        [CreateSandbox()],
    ),
    "a person's stop becomes a cancel": (replace(QUIET, stop="Interrupted"), [RequestCancel("Interrupted")]),
    "the deadline becomes a cancel": (
        replace(QUIET, age=timedelta(seconds=60), active_deadline=timedelta(seconds=60)),
        [RequestCancel("DeadlineExceeded")],
    ),
    "before the deadline nothing happens": (
        replace(QUIET, age=timedelta(seconds=59), active_deadline=timedelta(seconds=60)),
        [],
    ),
    "a cancelled harness gets its grace": (replace(QUIET, cancel="Interrupted", stop="Interrupted"), []),
    "after the grace it is killed": (replace(QUIET, cancel="Interrupted", since_cancel=CANCEL_GRACE), [KillHarness()]),
    "a second Ctrl-C kills it at once": (
        replace(QUIET, cancel="Interrupted", stop="Interrupted", impatient=True),
        [KillHarness()],
    ),
    "once it is gone the run is cancelled under the next epoch": (
        replace(QUIET, cancel="Interrupted", harness=HarnessSeen(epoch=1, exit=Exit(11))),
        [Finish(2, "Cancelled", "Interrupted")],
    ),
    "a cancel before the first harness needs none": (
        replace(QUIET, cancel="Interrupted", harness=None, gateway_running=False),
        [Finish(2, "Cancelled", "Interrupted")],
    ),
    "a run beyond its deadline has failed": (
        replace(QUIET, cancel="DeadlineExceeded", harness=HarnessSeen(epoch=1, exit=Exit(11))),
        [Finish(2, "Failed", "DeadlineExceeded", "the run took longer than its activeDeadlineSeconds")],
    ),
    "a cancelled run gets no new gateway and no sandbox": (
        replace(QUIET, cancel="Interrupted", gateway_running=False, want_sandbox=True),
        [],
    ),
    "a closed run is torn down, whatever else is due": (
        replace(QUIET, closed=True, cancel="Interrupted", harness=None, want_sandbox=True, gateway_running=False),
        [TearDown()],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_is_due(case: str) -> None:
    seen, due = TABLE[case]
    assert plan(seen) == due


def test_what_was_carried_out_is_not_asked_for_again() -> None:
    """The plan, applied to its own result, asks for nothing (but to wait)."""
    seen = replace(QUIET, harness=None, gateway_running=False, want_sandbox=True)
    assert plan(seen) == [StartGateway(), StartHarness(1), CreateSandbox()]
    after = replace(
        seen, harness=RUNNING, gateway_running=True, sandbox=replace(READY, state="Starting", recorded=False)
    )
    assert plan(after) == []
    recorded = replace(after, want_sandbox=False, sandbox=READY)
    assert plan(recorded) == []


@pytest.mark.parametrize("code", sorted(NO_CRASH - {HarnessExit.ASLEEP}))
def test_what_is_no_crash_is_replaced_and_never_counts(code: int) -> None:
    ended = HarnessSeen(epoch=4, exit=Exit(code))
    seen = replace(QUIET, epoch=4, harness=ended, lost_at=(FAR, FAR), backoff_limit=0)
    assert plan(seen) == [RecordHarnessLost(5, 4, Exit(code), None)]
