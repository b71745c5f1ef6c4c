"""One call's lines in the ledger, and the events that go with them: claimed, dispatched, settled.

`calls.py` makes one per execution. The scripts underneath change ledger and log together; here are the events' data,
and what to do when the store is away or has lost a claim.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

from towline.errors import Invalid, StoreUnavailable
from towline.events import calls as ledger
from towline.events.calls import Call
from towline.events.event import Draft, RunRef, draft
from towline.events.store import Store
from towline.gateway import result
from towline.gateway.exchange import MAX_UNPARSABLE_CHARACTERS, ToolAnswer, ToolRequest
from towline.gateway.policy import Decision
from towline.gateway.result import Finding

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE_SECONDS = 60.0
"""How long a result waits for a store that is away. The tool server still has it after that."""


class Record:
    """The call of one request under one decision."""

    def __init__(
        self, store: Store, run: RunRef, request: ToolRequest, decision: Decision, *, now: Callable[[], datetime]
    ) -> None:
        self._store, self._run, self._request, self._decision, self._now = store, run, request, decision, now
        self._epoch = 0

    async def claim(self, epoch: int) -> tuple[bool, Call]:
        """Ours to execute, or where the call stands already. Raises Fenced, LogClosed, RunCancelled, CallMismatch."""
        self._epoch = epoch
        return await ledger.claim(self._store, self._run, **self._claim(epoch))

    async def cancel(self, epoch: int) -> Call:
        """Settled as cancelled if nobody has executed the call, else marked for whoever does. Raises as `claim`."""
        request = self._request
        data = result.cancelled(executed=False).data(request.call_id, request.name, 0)
        settled = draft("agent.tool_result", data, now=self._now())
        return await ledger.cancel(self._store, self._run, **self._claim(epoch), result=settled)

    def _claim(self, epoch: int) -> dict[str, Any]:
        request = self._request
        data: dict[str, Any] = {
            "call_id": request.call_id,
            "name": request.name,
            "input": request.arguments,
            "decision": {"action": self._decision.action, "rule": self._decision.rule},
        }
        if request.unparsable is not None:
            data["input_text"] = request.unparsable[:MAX_UNPARSABLE_CHARACTERS]
        return {
            "epoch": epoch,
            "call_id": request.call_id,
            "name": request.name,
            "args_hash": request.args_hash,
            "event": draft("agent.tool_use", data, now=self._now()),
        }

    async def dispatch(self, sandbox: str, instance: str) -> Call:
        """From now on this tool server has the call, or the one that the answer names."""
        return await self._claimed(
            lambda: ledger.dispatch(self._store, self._run, self._request.call_id, sandbox=sandbox, instance=instance)
        )

    async def settle(self, finding: Finding, duration_ms: int) -> ToolAnswer:
        """Record the result, however long the store takes (bounded). The first result of a call is the result."""
        data = finding.data(self._request.call_id, self._request.name, duration_ms)
        event, before = draft("agent.tool_result", data, now=self._now()), self._before(finding)
        give_up = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while True:
            try:
                won, call = await self._claimed(
                    lambda: ledger.settle(self._store, self._run, self._request.call_id, event=event, before=before)
                )
                return result.answer(data) if won or call.result is None else result.stored_answer(call.result)
            except StoreUnavailable:
                if asyncio.get_running_loop().time() > give_up:
                    raise
            await asyncio.sleep(1.0)

    def _before(self, finding: Finding) -> list[Draft]:
        if finding.outcome != "denied":
            return []
        request = self._request
        denial = {
            "call_id": request.call_id,
            "name": request.name,
            "rule": self._decision.rule,
            "message": finding.text,
        }
        return [draft("policy.denied", denial, now=self._now())]

    async def _claimed(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step of a claimed call. A store that lost the claim with a failover is told again: work done stays done."""
        try:
            return await step()
        except Invalid:
            log.warning("claim lost", extra={"fields": {"run": self._run.uid, "call": self._request.call_id}})
            await self.claim(self._epoch)
            return await step()
