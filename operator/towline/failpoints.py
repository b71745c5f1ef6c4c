"""Named places at which a process can be made to die, so that what the others and the next one do can be proved.

Compiled in everywhere, inert unless a process was told of one at its start: `TOWLINE_FAILPOINT=<point>:<n>` ends it at
the n-th time it comes by, as `kill -9` would. The sweep in `testing/` goes through all of them. Standard library only.
"""

import os
import signal
from dataclasses import dataclass, field
from typing import Literal

Action = Literal["kill", "stop", "tell"]
"""`kill`: SIGKILL to oneself. `stop`: SIGSTOP, for a takeover of a process that is only paused. `tell`: go on, with a
line on stderr for each point that is passed."""

TELL = "tell"

POINTS: dict[str, str] = {
    "harness.read.after": "the run's state and history were read, nothing is written",
    "harness.arrival.after": "the harness has announced itself",
    "harness.append.before": "any batch of events is about to be appended",
    "harness.append.after": "any batch of events was appended, and the loop does not know yet",
    "harness.connect.before": "the gateway is about to be asked for its tools",
    "harness.inbox.after": "the inbox was read, and what was read is not in the log",
    "harness.turn.before": "a turn is about to start with its prompt",
    "harness.turn.after": "the turn has started, its prompt is consumed",
    "harness.model.before": "a model request is announced and not sent",
    "harness.model.streaming": "a piece of the answer has come",
    "harness.model.after": "the whole answer has come, and no event of it is in the log",
    "harness.answer.before": "the answer with its tool uses is about to be appended",
    "harness.answer.after": "the answer was appended, none of its tool uses was asked for",
    "harness.retry.waiting": "a model request failed, the pause before the next one begins",
    "harness.aborted.before": "the end of an answer that died with its harness is about to be recorded",
    "harness.delta.before": "a piece of live text is about to be shown",
    "harness.call.before": "a tool use is about to go to the gateway",
    "harness.call.again": "a tool use that an earlier harness asked for is about to go to the gateway again",
    "harness.call.sent": "the head of the gateway's answer has come, the answer has not",
    "harness.call.after": "the result has come, and is not in the history",
    "harness.result.after": "the result is in the history",
    "harness.completing.before": "a turn is about to be completed",
    "harness.completing.after": "the turn is complete, nothing more was decided",
    "harness.waiting.before": "an interactive run is about to say that it waits",
    "harness.waiting.after": "an interactive run waits for a prompt",
    "harness.asleep": "an interactive run needs no harness for a while, this one is about to end",
    "harness.steer.before": "a steering prompt is about to be taken into the running turn",
    "harness.interrupted": "a person broke an answer off, and nothing of it is in the log",
    "harness.steer.after": "a steering prompt was taken into the running turn, the model does not know it",
    "harness.interrupted.after": "the end of an answer that a person broke off is recorded, its turn is not ended",
    "harness.interrupt.before": "a person wants the turn to end, none of its calls is cancelled",
    "harness.interrupt.after": "the calls of an interrupted turn have their results, it is not complete",
    "harness.interrupt.completed": "the interrupted turn is complete, the next one has not begun",
    "harness.cancel.before": "a tool use of an interrupted turn is about to be cancelled",
    "harness.cancel.after": "a tool use of an interrupted turn has its result",
    "harness.continue.before": "the history of another run was read, and this one's does not begin with it",
    "harness.continue.after": "the history of another run is taken over, no turn has begun",
    "harness.compact.before": "the summary of a long history has come, and is not in the log",
    "harness.compact.after": "the history begins anew in the log, and nothing was asked since",
    "harness.finish.before": "the terminal event is about to be appended",
    "harness.finish.after": "the log is closed, the process has not ended",
    "gateway.authenticated": "the caller is known, its request is not read",
    "gateway.bound": "the run's snapshot was read for its first call",
    "gateway.claim.before": "a call is about to be claimed",
    "gateway.claim.after": "the call is claimed, nothing was done for it",
    "gateway.refusal": "the call will not be carried out, and its result says so to nobody yet",
    "gateway.want.after": "a sandbox is wanted, none is ready",
    "gateway.sandbox.before": "a sandbox is ready, and is about to be asked for its proof",
    "gateway.sandbox.after": "the sandbox has proved itself and holds the run's files",
    "gateway.seed.before": "the run's files are about to be put into the workspace",
    "gateway.dispatch.before": "the call is about to be bound to a tool server",
    "gateway.dispatch.after": "the call is bound to a tool server that has not heard of it",
    "gateway.forward.before": "the call is about to be sent to the tool server",
    "gateway.forward.after": "the tool server has the call and has not answered",
    "gateway.output": "a piece of the command's output has come",
    "gateway.reply": "the tool server's result has come, and is recorded nowhere",
    "gateway.settle.before": "the result is about to be recorded",
    "gateway.settle.after": "the result is recorded, the caller does not have it",
    "gateway.answer.before": "the answer to the caller is about to be written",
    "gateway.attach": "a call that is with a tool server already is about to be looked for there",
    "gateway.look": "the state of a run with a long call is about to be read",
    "gateway.cancel.before": "a call is about to be marked as cancelled",
    "gateway.cancel.after": "the call is marked as cancelled, or settled so, and nobody was told",
    "gateway.kill": "a cancelled command is about to be killed",
    "operator.leading": "this process leads, and has looked at nothing",
    "operator.observed": "a run was looked at live, nothing is done",
    "operator.finalizer.before": "the finalizer is about to be added to a new run",
    "operator.finalizer.after": "the finalizer is on the run, nothing else is",
    "operator.snapshot.before": "the snapshot is about to be stored",
    "operator.snapshot.after": "the snapshot is stored, no epoch is granted",
    "operator.grant.before": "an epoch is about to be written into the status",
    "operator.grant.after": "the epoch stands in the status, the store does not know it",
    "operator.raise.before": "the epoch is about to be raised in the store",
    "operator.raise.after": "the epoch is raised in the store, no pod has it",
    "operator.harness.before": "the harness' name is known to the gateways, its pod does not exist",
    "operator.harness.after": "the harness' pod exists",
    "operator.sandbox.before": "a sandbox' pod is about to be made",
    "operator.sandbox.after": "the sandbox' pod exists",
    "operator.ready.before": "the sandbox' record is about to say that it is ready",
    "operator.ready.after": "the sandbox' record says that it is ready",
    "operator.lost.before": "the sandbox' record is about to say that it is lost",
    "operator.cancel.before": "a cancellation is about to be handed on to the run",
    "operator.finish.before": "the operator's own terminal event is about to be appended",
    "operator.finish.after": "the log is closed by the operator, the status does not say so",
    "operator.phase.before": "a new phase is about to be told to the log",
    "operator.phase.after": "the log has the new phase, neither feed nor status do",
    "operator.delete.before": "a pod is about to be deleted",
    "operator.delete.after": "the pod was deleted",
    "operator.settle.before": "the finalizer is about to be taken from a run",
    "operator.settle.after": "the finalizer is taken from the run",
    "operator.expire.before": "the history of a deleted run is about to be let go",
    "operator.status.before": "a status is about to be written",
    "operator.status.after": "the status was written, nothing in this process remembers it",
    "operator.policy.before": "a network policy is about to be put back",
    "operator.policy.after": "a network policy was put back, no sandbox was allowed on account of it",
    "operator.workspace.before": "the claim that kept a workspace is about to be deleted",
    "operator.orphan.before": "a pod without a run is about to be deleted",
}
"""Name → what is true at this moment. The prefix is the process. Each stands exactly once in the code, as a literal."""


@dataclass(slots=True)
class Armed:
    """What this process is to do at one of its points; for `tell`, at all."""

    point: str
    at: int
    action: Action
    passed: int = field(default=0)

    def hit(self, name: str) -> None:
        if self.action == "tell":
            os.write(2, f"failpoint {name}\n".encode())
            return
        if name != self.point:
            return
        self.passed += 1
        if self.passed != self.at:
            return
        if self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(128 + signal.SIGKILL)  # the first process of a container is deaf to its own SIGKILL


_armed: Armed | None = None


def hit(name: str) -> None:
    """This process is at the point `name`."""
    if _armed is not None:
        _armed.hit(name)


def arm(given: Armed | None) -> None:
    """Called once, by a process's main, with what the settings say."""
    global _armed
    _armed = given


def parse(text: str) -> Armed:
    """`<point>:<n>`, `<point>:<n>:stop`, or `tell`; raises ValueError that says what was expected."""
    if text == TELL:
        return Armed("", 0, "tell")
    point, _, rest = text.partition(":")
    number, _, action = rest.partition(":")
    if point not in POINTS:
        raise ValueError("unknown failpoint; `python -m towline.testing.failpoints --list` prints them")
    if not number.isdecimal() or int(number) < 1 or action not in ("", "kill", "stop"):
        raise ValueError("expected <point>:<n> or <point>:<n>:stop, n from 1")
    return Armed(point, int(number), "stop" if action == "stop" else "kill")
