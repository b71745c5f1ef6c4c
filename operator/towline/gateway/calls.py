"""One tool call, from a known caller to its one recorded result. Both faces of the gateway end here.

    load snapshot → decide → claim in the ledger → validate → sandbox (lazy) → dispatch → forward → record → answer

The execution is a task of its own, detached from the request that asked for it: a caller that vanishes loses nothing
and attaches again by call id, here or at another gateway. At most one execution per call id, ever; whatever happens
between claim and answer is recorded exactly once, as the ledger's first result.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from towline import failpoints
from towline.errors import CallMismatch, Fenced, SandboxFailed, StoreLost
from towline.events.calls import Call
from towline.events.live import push_delta
from towline.events.store import Store
from towline.gateway import result
from towline.gateway.bound_run import BoundRun, BoundRuns, Execution
from towline.gateway.exchange import ToolAnswer, ToolRequest
from towline.gateway.forward import forward, order
from towline.gateway.identity import Principal
from towline.gateway.interrupt import Unwanted
from towline.gateway.lease import ProvedSandbox
from towline.gateway.limits import WAITERS_PER_CALL, Busy
from towline.gateway.live_output import LiveOutput
from towline.gateway.policy import Decision, decide
from towline.gateway.record import Record
from towline.gateway.result import Finding
from towline.gateway.tools import problem, seconds_allowed

log = logging.getLogger(__name__)

SLACK_SECONDS = 30.0
"""Beyond a command's own timeout, for the kill, the answer and a reconnect. After it the outcome is unknown."""

VERDICT_SECONDS = 3.0
"""Beyond the time that a sandbox may take to start: the operator counts it too, from a moment later, knows why it was
too long, and makes way for the next one. Before that, the next call would share this one's failure."""


class Calls:
    """The calls of one gateway."""

    def __init__(self, store: Store, runs: BoundRuns, *, now: Callable[[], datetime]) -> None:
        self._store, self._runs, self._now = store, runs, now

    async def handle(self, principal: Principal, request: ToolRequest) -> ToolAnswer:
        """The call's one result, whoever executed it and whenever.

        Cancelling this coroutine ends the wait, not the call. Raises UnknownRun, Fenced, LogClosed, RunCancelled,
        CallMismatch, Busy, StoreUnavailable, StoreLost; everything else is a result.
        """
        run = await self._runs.get(principal.namespace, principal.uid)
        if request.cancel:
            return await self._cancel(run, principal, request)
        while True:
            execution = run.executions.get(request.call_id)
            if execution is None:
                execution = self._start(run, principal, request)
            elif execution.request.args_hash != request.args_hash:
                raise CallMismatch(request.call_id)
            elif execution.epoch != principal.epoch:
                await self._record(run, request).claim(principal.epoch)  # a stale harness may not even attach
                execution.epoch = max(execution.epoch, principal.epoch)
            try:
                return await _wait_for(execution)
            except Fenced as fault:
                if fault.epoch >= principal.epoch:
                    raise
                # The execution was an older harness' and had not claimed yet; the caller's own epoch is good.

    async def _cancel(self, run: BoundRun, principal: Principal, request: ToolRequest) -> ToolAnswer:
        """End the call, whoever executes it: its processes are dead, or its sandbox does not answer, on return.

        What no tool server has is settled by the ledger. Else this gateway takes the call up like any other that asks
        for it, if it has not, and kills it; one that executes it hears of that, too.
        """
        record = self._record(run, request)
        failpoints.hit("gateway.cancel.before")
        call = await record.cancel(principal.epoch)
        failpoints.hit("gateway.cancel.after")
        execution = run.executions.get(request.call_id)
        if call.result is None:
            execution = execution or self._start(run, principal, request)
            execution.cancel()
            return await _wait_for(execution)
        if execution is not None:
            execution.cancel()  # it waits for a turn or a sandbox that nobody needs any more
        return await record.stored(call)

    def _start(self, run: BoundRun, principal: Principal, request: ToolRequest) -> Execution:
        run.places.enter(ending=request.cancel)
        execution = Execution(request, principal.epoch)
        run.executions[request.call_id] = execution
        execution.task = asyncio.create_task(self._in_turn(run, execution))
        execution.task.add_done_callback(_retrieved)
        return execution

    async def _in_turn(self, run: BoundRun, execution: Execution) -> ToolAnswer:
        listening: asyncio.TimerHandle | None = None
        has_turn = False
        try:
            if not execution.unwanted:
                has_turn = await _turn(run, execution)
                listening = self._runs.attend_later(run)
            return await self._execute(run, execution)
        except StoreLost as fault:
            run.remember(execution)
            raise StoreLost(fault.call_id, " ".join(execution.dispatched)) from None
        finally:
            if listening is not None:
                listening.cancel()
            if has_turn:
                run.places.end()
            del run.executions[execution.request.call_id]
            run.places.leave()

    async def _execute(self, run: BoundRun, execution: Execution) -> ToolAnswer:
        request, started = execution.request, asyncio.get_running_loop().time()
        decision = decide(run.snapshot.policy, request.name, run.tools)
        record = self._record(run, request, decision)
        failpoints.hit("gateway.claim.before")
        claimed, call = await record.claim(execution.epoch)
        failpoints.hit("gateway.claim.after")
        if call.result is not None:
            return await record.stored(call)
        if call.state == "claimed" and (where := request.dispatched or run.lost.get(request.call_id)):
            execution.dispatched = where
            run.remember(execution)  # until the ledger knows it again
            call = await record.dispatch(*where)
            run.lost.pop(request.call_id, None)
        finding = _refusal(run, request, decision)
        if finding is None:
            finding = await self._carry_out(run, execution, record, call, claimed)
        else:
            failpoints.hit("gateway.refusal")
        failpoints.hit("gateway.settle.before")
        won, answer = await record.settle(finding, round((asyncio.get_running_loop().time() - started) * 1000))
        failpoints.hit("gateway.settle.after")
        if won:
            run.lease.told(finding.new_sandbox)
        run.lease.acknowledge(request.call_id)
        if finding.outcome != "ok":
            fields = {"run": run.ref.uid, "call": request.call_id, "tool": request.name, "outcome": answer.outcome}
            log.info("call settled", extra={"fields": fields})
        return answer

    async def _carry_out(
        self, run: BoundRun, execution: Execution, record: Record, call: Call, claimed: bool
    ) -> Finding:
        """In the sandbox. A call that a tool server already has is asked for there, and nowhere else."""
        request = execution.request
        executed = call.state == "dispatched"
        if executed:
            execution.dispatched = (call.sandbox, call.instance)
            execution.taken_up(cancelled=call.cancelled)
        try:
            sandbox = await self._sandbox(run, execution, call, claimed)
            failpoints.hit("gateway.dispatch.before")
            call = await record.dispatch(sandbox.name, sandbox.instance)
            failpoints.hit("gateway.dispatch.after")
            if call.state == "settled":
                raise Unwanted  # cancelled while it waited for the sandbox
            executed = True
            execution.dispatched = (call.sandbox, call.instance)
            if (call.sandbox, call.instance) != (sandbox.name, sandbox.instance):
                execution.taken_up(cancelled=call.cancelled)  # another gateway was first
                sandbox = await self._sandbox(run, execution, call, claimed)
            return await self._forward(run, execution, sandbox, call)
        except Unwanted:
            execution.kill()
            return result.cancelled(executed)
        except SandboxFailed as fault:
            fields = {"run": run.ref.uid, "call": request.call_id, "reason": fault.reason}
            log.warning("sandbox failed", extra={"fields": fields})
            if fault.reason == "NoAnswer":
                execution.kill()
            if fault.reason in ("NoAnswer", "BadReply", "Unreachable"):
                await run.lease.silent(execution.epoch, fault)
            if not executed or fault.reason in ("Refused", "Overloaded"):
                return result.not_started(fault.reason, fault.message)
            kept = run.snapshot.sandbox.keeps_workspace
            return result.unknown(fault.reason, fault.message, workspace_kept=kept)
        finally:
            execution.sandbox = None

    async def _sandbox(self, run: BoundRun, execution: Execution, call: Call, claimed: bool) -> ProvedSandbox:
        """Where the call runs or is to run. A call claimed earlier may have been cancelled since: look first."""
        seconds = float(run.snapshot.sandbox.start_timeout_seconds)
        late = SandboxFailed("StartTimeout", f"no sandbox was ready within {seconds:.0f} s")
        async with execution.interrupt.within(seconds + VERDICT_SECONDS, late):
            if call.state == "dispatched":
                failpoints.hit("gateway.attach")
                execution.hand_to(await run.lease.sandbox_of(call))
            if not claimed:
                await self._runs.look(run)
                execution.interrupt.check()
            return execution.sandbox or await run.lease.sandbox_for(call.call_id)

    async def _forward(self, run: BoundRun, execution: Execution, sandbox: ProvedSandbox, call: Call) -> Finding:
        request = execution.request
        execution.hand_to(sandbox)
        seconds = seconds_allowed(request.name, request.arguments, run.snapshot.sandbox.exec_timeout_seconds)
        late = SandboxFailed("NoAnswer", f"the sandbox gave no answer within {seconds + SLACK_SECONDS:.0f} s")

        async def push(delta: Mapping[str, Any]) -> None:
            await push_delta(self._store, run.ref, epoch=execution.epoch, delta=delta)

        live = LiveOutput(request.call_id, push)
        try:
            async with execution.interrupt.within(seconds + SLACK_SECONDS, late):
                reply = await forward(run.lease, sandbox, call, order(request, seconds), live.add)
        finally:
            await live.aclose()
        failpoints.hit("gateway.reply")
        run.lease.answered()
        if reply.code == RESULT_DROPPED:
            return result.unknown(RESULT_DROPPED, "the tool server ran the call, but had to drop its result")
        new_sandbox = sandbox.name if sandbox.untold else ""
        return result.from_reply(reply, timeout_seconds=seconds, new_sandbox=new_sandbox)

    def _record(self, run: BoundRun, request: ToolRequest, decision: Decision | None = None) -> Record:
        decision = decision or decide(run.snapshot.policy, request.name, run.tools)
        return Record(self._store, run.ref, request, decision, now=self._now)


RESULT_DROPPED = "ResultDropped"
"""The tool server's word for a call that ran and whose result it could not keep."""


def _refusal(run: BoundRun, request: ToolRequest, decision: Decision) -> Finding | None:
    """Why the call is not carried out; the policy speaks before anything else is said about an offered tool."""
    tool = run.tools.get(request.name)
    if tool is None:
        return result.unknown_tool(request.name, list(run.tools))
    if not decision.allowed:
        return result.denied(request.name, decision.rule)
    if request.unparsable is not None:
        return result.broken_arguments(request.name, "the arguments are not a JSON object")
    if (fault := problem(tool, request.arguments)) is not None:
        return result.broken_arguments(request.name, fault)
    if run.snapshot.sandbox.policy == "Never":
        return result.no_sandbox(request.name)
    return None


async def _turn(run: BoundRun, execution: Execution) -> bool:
    """Wait for the call's turn; false when it was cancelled meanwhile, for it will start nothing."""
    try:
        async with asyncio.timeout(None) as execution.queue:
            await run.places.begin()
            return True
    except TimeoutError:
        return False
    finally:
        execution.queue = None


async def _wait_for(execution: Execution) -> ToolAnswer:
    """The execution's end; a cancelled wait leaves it running."""
    if execution.waiters >= WAITERS_PER_CALL:
        raise Busy(f"{execution.waiters} requests wait for call {execution.request.call_id}", run=True)
    execution.waiters += 1
    try:
        assert execution.task is not None
        return await asyncio.shield(execution.task)
    finally:
        execution.waiters -= 1


def _retrieved(task: "asyncio.Task[ToolAnswer]") -> None:
    """A failed call whose callers are gone is no lost exception: they will ask again and be told."""
    if not task.cancelled():
        task.exception()
