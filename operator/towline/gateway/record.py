"""One call's lines in the ledger, and the events that go with them: claimed, dispatched, settled.

`calls.py` makes one per execution. The scripts underneath change ledger and log together; here are the events' data,
and what to do when the store is away. When it has lost the call, the caller is sent back (StoreLost): its own events,
which come before those of the call, have to be put back first.
"""

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from towline.errors import Gap, StoreUnavailable
from towline.events import calls as ledger
from towline.events.adopted import denied_data, record_of, use_data
from towline.events.calls import Call
from towline.events.event import Draft, RunRef, draft
from towline.events.log import EventLog
from towline.events.store import Store
from towline.gateway import result
from towline.gateway.exchange import ToolAnswer, ToolRequest
from towline.gateway.policy import Decision
from towline.gateway.result import Finding

SETTLE_SECONDS = 60.0
"""How long a result waits for a store that is away. The tool server still has it after that."""


class Record:
    """The call of one request under one decision."""

    def __init__(
        self, store: Store, run: RunRef, request: ToolRequest, decision: Decision, *, now: Callable[[], datetime]
    ) -> None:
        self._store, self._run, self._request, self._decision, self._now = store, run, request, decision, now
        self._use_data = use_data(
            *(request.call_id, request.name, request.arguments),
            {"action": decision.action, "rule": decision.rule},
            request.unparsable,
        )
        self._use: Draft | None = None
        """Our agent.tool_use, if the call was first claimed here."""
        self._known: Call | None = None

    async def claim(self, epoch: int) -> tuple[bool, Call]:
        """Ours to execute, or where the call stands already. Raises Fenced, LogClosed, RunCancelled, CallMismatch."""
        use = draft("agent.tool_use", self._use_data, now=self._now())
        claimed, self._known = await ledger.claim(self._store, self._run, **self._identity(epoch), event=use)
        self._use = use if claimed else None
        return claimed, self._known

    async def cancel(self, epoch: int) -> Call:
        """Settled as cancelled if nobody has executed the call, else marked for whoever does. Raises as `claim`."""
        request = self._request
        data = result.cancelled(executed=False).data(request.call_id, request.name, 0)
        return await ledger.cancel(
            *(self._store, self._run),
            **self._identity(epoch),
            event=draft("agent.tool_use", self._use_data, now=self._now()),
            result=draft("agent.tool_result", data, now=self._now()),
        )

    async def dispatch(self, sandbox: str, instance: str) -> Call:
        """From now on this tool server has the call, or the one that the answer names. Raises StoreLost."""
        call_id, known = self._request.call_id, self._known
        return await ledger.dispatch(self._store, self._run, call_id, sandbox=sandbox, instance=instance, known=known)

    async def settle(self, finding: Finding, duration_ms: int) -> tuple[bool, ToolAnswer]:
        """Record the result, however long the store takes (bounded): whether it is the call's, and the one that is.

        Raises StoreLost.
        """
        request = self._request
        data = finding.data(request.call_id, request.name, duration_ms)
        event, before = draft("agent.tool_result", data, now=self._now()), self._before(finding)
        give_up = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while True:
            try:
                won, call = await ledger.settle(
                    *(self._store, self._run, request.call_id),
                    event=event,
                    before=before,
                    new_sandbox=finding.new_sandbox,
                    known=self._known,
                )
                break
            except StoreUnavailable:
                if asyncio.get_running_loop().time() > give_up:
                    raise
            await asyncio.sleep(1.0)
        if not won and call.result is not None:
            return False, await self.stored(call)
        if self._use is None:
            return won, result.answer(data, await self._read_back(call))
        drafts = [(each.id, each.type, each.time, json.loads(each.data)) for each in before]
        drafts = [(self._use.id, self._use.type, self._use.time, self._use_data), *drafts]
        drafts.append((event.id, event.type, event.time, data))
        told = record_of(request.args_hash, call.seq, call.result_seq, drafts) if call.result_seq else None
        return won, result.answer(data, told)

    async def stored(self, call: Call) -> ToolAnswer:
        """What a caller gets for a result that was recorded before."""
        assert call.result is not None, "settled"
        return result.answer(json.loads(call.result), await self._read_back(call))

    async def _read_back(self, call: Call) -> dict[str, Any] | None:
        """The record of a call out of the log, where another gateway has written a part of it; None when it is gone."""
        if not call.result_seq:
            return None
        log = EventLog(self._store, self._run)
        try:
            events = await log.read(call.seq, 1) + await log.read(max(call.result_seq - 1, call.seq + 1), 2)
        except Gap:
            return None
        ours = [each for each in events if each.src == "gateway" and each.payload.get("call_id") == call.call_id]
        if [each.seq for each in (ours[:1] + ours[-1:])] != [call.seq, call.result_seq]:
            return None
        told = [(each.id, each.type, each.time, each.payload) for each in ours]
        return record_of(call.args_hash, call.seq, call.result_seq, told)

    def _identity(self, epoch: int) -> dict[str, Any]:
        request = self._request
        return {
            "epoch": epoch,
            "call_id": request.call_id,
            "name": request.name,
            "args_hash": request.args_hash,
            "seen": request.seen,
        }

    def _before(self, finding: Finding) -> list[Draft]:
        if finding.outcome != "denied":
            return []
        data = denied_data(self._request.call_id, self._request.name, self._decision.rule, finding.text)
        return [draft("policy.denied", data, now=self._now())]
