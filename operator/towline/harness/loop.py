"""The agent loop: decide the next step from history and inbox, carry it out, record it, until the run ends or sleeps.

A function of ports without I/O of its own. `process.py` calls it; `steps.py` decides; `asking.py` asks the model;
`journal.py` records. A store that fails ends it, to be resumed by the next process from what the log says.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from towline import failpoints
from towline.api.snapshot import IdlePolicy, Snapshot
from towline.errors import PromptsUnread
from towline.events.totals import Totals
from towline.harness.asking import Asker
from towline.harness.consumed import OWN_PROMPT_ID
from towline.harness.fold import History
from towline.harness.journal import Fact, Journal
from towline.harness.mail import Interrupted, Mail
from towline.harness.ports import Clock, GatewayRefused, Ports
from towline.harness.steps import (
    AskModel,
    CallTools,
    Compact,
    CompleteTurn,
    Fail,
    Finish,
    Interrupt,
    Rest,
    Sleep,
    StartTurn,
    TakeSteers,
    Wait,
    next_step,
    while_idle,
)
from towline.harness.transcript import AssistantMessage, ToolUse
from towline.inbox import Prompt

RESULT_CHARACTERS = 4096
"""How much of the final answer `run.completed` repeats; the whole is in the last `agent.message`."""


class Ending(StrEnum):
    """Why the loop returned."""

    FINISHED = "finished"
    """The log has its terminal event."""
    ASLEEP = "asleep"
    """An interactive run has answered every prompt, and nobody came for a while: call again when there is one."""


async def run_turns(ports: Ports, snapshot: Snapshot, history: History) -> Ending:
    """Go on from `history`, wherever it stops, to the end of the run or its sleep. `history` is kept current.

    Raises StopWriting when the run is no longer ours, StoreUnavailable when the store is away: nothing is lost, the
    next process resumes. May be cancelled at any point, with the same consequence.
    """
    journal = Journal(ports.sink, ports.clock, history)
    mail = Mail(ports.inbox, snapshot.prompt, history)
    asker = Asker(ports, snapshot, journal, mail)
    idle = _Idle(ports.clock, snapshot.idle_policy)
    await asker.close_unfinished()
    while True:
        failure: Fail | None = None
        match next_step(history, snapshot, await mail.pending()):
            case StartTurn(prompt):
                await _start_turn(journal, prompt)
            case TakeSteers(prompts):
                failpoints.hit("harness.steer.before")
                await journal.append(*map(_message, prompts), totals=Totals(prompts=len(prompts)))
                failpoints.hit("harness.steer.after")
            case AskModel():
                failure = await asker.answer()
            case Compact(cut):
                failure = await asker.summary(cut)
            case CallTools(uses):
                failure = await _call_tools(ports, journal, mail, uses)
            case Interrupt(uses):
                failure = await _interrupt(ports, journal, uses)
            case CompleteTurn(stop_reason):
                failpoints.hit("harness.completing.before")
                await journal.append(Fact("turn.completed", {"stop_reason": stop_reason}))
                failpoints.hit("harness.completing.after")
            case Rest(seen) if not snapshot.interactive:
                if await _complete(journal, seen):
                    return Ending.FINISHED
            case Rest(seen):
                match await idle.step(journal):
                    case Wait(seconds):
                        await mail.news_or(ports.clock.sleep(seconds))
                    case Sleep():
                        failpoints.hit("harness.asleep")
                        return Ending.ASLEEP
                    case Finish():
                        if await _complete(journal, seen):
                            return Ending.FINISHED
            case Fail() as failed:
                failure = failed
        if failure is not None:
            await journal.finish(Fact("run.failed", {"reason": failure.reason, "message": failure.message}))
            return Ending.FINISHED


async def _start_turn(journal: Journal, prompt: Prompt) -> None:
    started = Fact("turn.started", {"prompt_ids": [prompt.id]})
    totals = Totals(turns=1, prompts=int(prompt.id != OWN_PROMPT_ID))
    failpoints.hit("harness.turn.before")
    await journal.append(started, _message(prompt), totals=totals, turn=journal.history.turn + 1)
    failpoints.hit("harness.turn.after")


def _message(prompt: Prompt) -> Fact:
    how = {"delivery": prompt.delivery, "sender": prompt.sender, "key": prompt.key}
    return Fact("user.message", {"prompt_id": prompt.id, "content": prompt.content, **how})


async def _call_tools(ports: Ports, journal: Journal, mail: Mail, uses: Sequence[ToolUse]) -> Fail | None:
    """In the order the model asked. The gateway records claim and result; we only take the result over.

    Leaves the rest as it is when a person interrupts: the next step ends it. One ear for all of them: a look into the
    inbox that a call's end would break off, again and again, might never see what is there.
    """

    async def one_by_one() -> None:
        for use in uses:
            if use.call_id in journal.history.claimed:
                failpoints.hit("harness.call.again")
            failpoints.hit("harness.call.before")
            result = await ports.tools.call(use)
            failpoints.hit("harness.call.after")
            journal.adopt(use, result)
            failpoints.hit("harness.result.after")

    try:
        await mail.unless_interrupted(one_by_one())
    except Interrupted:
        return None
    except GatewayRefused as refusal:
        return Fail("GatewayRefused", str(refusal))
    return None


async def _interrupt(ports: Ports, journal: Journal, uses: Sequence[ToolUse]) -> Fail | None:
    """Every tool use gets its one result all the same: that it was cancelled, or what it was before."""
    failpoints.hit("harness.interrupt.before")
    try:
        for use in uses:
            failpoints.hit("harness.cancel.before")
            journal.adopt(use, await ports.tools.cancel(use))
            failpoints.hit("harness.cancel.after")
    except GatewayRefused as refusal:
        return Fail("GatewayRefused", str(refusal))
    failpoints.hit("harness.interrupt.after")
    await journal.append(Fact("turn.completed", {"stop_reason": "interrupted"}))
    failpoints.hit("harness.interrupt.completed")
    return None


class _Idle:
    """How long the run has waited for a prompt: by the log's clock for what was before us, by our own since then."""

    def __init__(self, clock: Clock, policy: IdlePolicy) -> None:
        self._clock, self._policy = clock, policy
        self._since, self._before, self._began = "", 0.0, 0.0

    async def step(self, journal: Journal) -> Wait | Sleep | Finish:
        """What is due now; the first time says in the log that the run waits."""
        if not journal.history.waiting_since:
            failpoints.hit("harness.waiting.before")
            await journal.append(Fact("turn.waiting", {"on": "prompt"}))
            failpoints.hit("harness.waiting.after")
        if self._since != journal.history.waiting_since:
            self._since = journal.history.waiting_since
            self._before = max((self._clock.now() - datetime.fromisoformat(self._since)).total_seconds(), 0.0)
            self._began = self._clock.monotonic()
        return while_idle(self._policy, self._before + self._clock.monotonic() - self._began)


async def _complete(journal: Journal, seen: int) -> bool:
    """End the run with its last answer; False when a prompt came since the inbox was read."""
    answers = (m for m in reversed(journal.history.messages) if isinstance(m, AssistantMessage))
    text = next((answer.text for answer in answers), "")
    totals = journal.history.totals
    result = {
        "text": text[:RESULT_CHARACTERS],
        "truncated": len(text) > RESULT_CHARACTERS,
        "sha256": hashlib.sha256(text.encode(errors="replace")).hexdigest(),
    }
    usage = {
        "input_tokens": totals.input_tokens,
        "output_tokens": totals.output_tokens,
        "cached_input_tokens": totals.cached_input_tokens,
    }
    counts = {"cost_micro_usd": totals.cost_micro_usd, "turns": totals.turns, "tool_calls": totals.tool_calls}
    try:
        await journal.finish(Fact("run.completed", {"result": result, "usage": usage, **counts}), seen_prompt=seen)
    except PromptsUnread:
        return False
    return True
