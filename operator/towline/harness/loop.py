"""The agent loop: decide the next step from the history, carry it out, record it, until the run ends or rests.

A function of ports without I/O of its own. `process.py` calls it; `steps.py` decides; `journal.py` records. It retries
only model requests: a store that fails ends it, to be resumed by the next process from what the log says.
"""

import hashlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.errors import PromptsUnread
from towline.events.event import to_json
from towline.events.totals import Totals
from towline.harness.fold import NOTHING_CONSUMED, History
from towline.harness.journal import Fact, Journal
from towline.harness.models.base import (
    Finished,
    ModelFault,
    ModelProtocolError,
    Request,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from towline.harness.ports import GatewayRefused, Ports
from towline.harness.steps import (
    AskModel,
    CallTools,
    CompleteTurn,
    Fail,
    TakePrompt,
    cost_micro_usd,
    next_step,
    retry_delay_seconds,
    too_many_turns,
)
from towline.harness.transcript import AssistantMessage, ToolUse, block_data
from towline.inbox import Prompt

OWN_PROMPT_ID = "0-0"
"""Prompt id of the prompt in the run's spec; those of the inbox start at 1-0."""

MAX_ANSWER_BYTES = 7 << 20
"""Of one answer as JSON: an event holds 8 MiB."""

PARTIAL_CHARACTERS = 65_536
"""How much of a broken answer `agent.message_aborted` keeps."""

RESULT_CHARACTERS = 4096
"""How much of the final answer `run.completed` repeats; the whole is in the last `agent.message`."""


class Ending(StrEnum):
    """Why the loop returned."""

    FINISHED = "finished"
    """The log has its terminal event."""
    WAITING = "waiting"
    """An interactive run has answered every prompt; call again when there is one."""


async def run_turns(ports: Ports, snapshot: Snapshot, history: History) -> Ending:
    """Go on from `history`, wherever it stops, to the end of the run. `history` is kept current.

    Raises StopWriting when the run is no longer ours, StoreUnavailable when the store is away: nothing is lost, the
    next process resumes. May be cancelled at any point, with the same consequence.
    """
    journal = Journal(ports.sink, ports.clock, history)
    if history.unfinished_message is not None:
        await _abort_interrupted(ports, snapshot, journal, history.unfinished_message)
    while True:
        match next_step(history, snapshot.limits):
            case TakePrompt():
                prompt = await _next_prompt(ports, snapshot, history)
                if prompt is None and snapshot.interactive:
                    return await _wait(journal)
                if prompt is None:
                    if await _complete(journal):
                        return Ending.FINISHED
                    continue
                if failure := too_many_turns(history.totals, snapshot.limits):
                    return await _fail(journal, failure)
                await _start_turn(journal, [prompt])
            case AskModel():
                if failure := await _ask_model(ports, snapshot, journal):
                    return await _fail(journal, failure)
            case CallTools(uses):
                if failure := await _call_tools(ports, journal, uses):
                    return await _fail(journal, failure)
            case CompleteTurn(stop_reason):
                failpoints.hit("harness.completing.before")
                await journal.append(Fact("turn.completed", {"stop_reason": stop_reason}))
                failpoints.hit("harness.completing.after")
            case Fail() as failure:
                return await _fail(journal, failure)


async def _next_prompt(ports: Ports, snapshot: Snapshot, history: History) -> Prompt | None:
    """The run's own prompt first, then the inbox in order; each starts a turn of its own."""
    if history.cursor == NOTHING_CONSUMED and snapshot.prompt:
        return Prompt(OWN_PROMPT_ID, snapshot.prompt, "queue", "")
    prompts = await ports.inbox.read_after(history.cursor or OWN_PROMPT_ID)
    return prompts[0] if prompts else None


async def _start_turn(journal: Journal, prompts: Sequence[Prompt]) -> None:
    started = Fact("turn.started", {"prompt_ids": [prompt.id for prompt in prompts]})
    messages = [
        Fact(
            "user.message",
            {
                "prompt_id": prompt.id,
                "content": prompt.content,
                "delivery": prompt.delivery,
                "sender": prompt.sender,
            },
        )
        for prompt in prompts
    ]
    failpoints.hit("harness.turn.before")
    await journal.append(started, *messages, totals=_taken(prompts), turn=journal.history.turn + 1)
    failpoints.hit("harness.turn.after")


def _taken(prompts: Sequence[Prompt]) -> Totals:
    return Totals(turns=1, prompts=sum(prompt.id != OWN_PROMPT_ID for prompt in prompts))


async def _call_tools(ports: Ports, journal: Journal, uses: Sequence[ToolUse]) -> Fail | None:
    """In the order the model asked. The gateway records claim and result; we only take the result over."""
    try:
        for use in uses:
            if use.call_id in journal.history.claimed:
                failpoints.hit("harness.call.again")
            failpoints.hit("harness.call.before")
            result = await ports.tools.call(use)
            failpoints.hit("harness.call.after")
            journal.adopt(use, result)
            failpoints.hit("harness.result.after")
    except GatewayRefused as refusal:
        return Fail("GatewayRefused", str(refusal))
    return None


async def _ask_model(ports: Ports, snapshot: Snapshot, journal: Journal) -> Fail | None:
    """One answer in the log, after as many attempts as it takes; a Fail when there is none to be had."""
    attempt = 1
    while True:
        this = _Attempt(ports.clock.new_message_id(), ports.clock.monotonic())
        await journal.append(
            Fact("span.model_request_start", {"message_id": this.message_id, "model": snapshot.model.name}),
            Fact("agent.message_start", {"message_id": this.message_id}),
        )
        failpoints.hit("harness.model.before")
        try:
            answer = await _stream(ports, snapshot, journal.history, this)
            content = _recordable(answer)
        except ModelFault as fault:
            end, totals = _request_end(ports, snapshot, this, fault.usage, fault.reason)
            aborted = _aborted(this.message_id, "".join(this.text), fault.reason)
            delay = retry_delay_seconds(attempt, fault.retry_after_seconds) if fault.retryable else None
            if delay is None:
                await journal.append(end, aborted, totals=totals)
                return Fail(fault.reason, f"{fault} (attempt {attempt})" if attempt > 1 else str(fault))
            retrying = {"reason": f"{fault.reason}: {fault}", "attempt": attempt, "delay_seconds": delay}
            await journal.append(end, aborted, Fact("turn.retrying", retrying), totals=totals)
            failpoints.hit("harness.retry.waiting")
            await ports.clock.sleep(delay)
            attempt += 1
            continue
        end, totals = _request_end(ports, snapshot, this, answer.usage, None)
        message = {"message_id": this.message_id, "content": content, "stop_reason": answer.stop_reason}
        failpoints.hit("harness.answer.before")
        await journal.append(end, Fact("agent.message", message), totals=totals)
        failpoints.hit("harness.answer.after")
        return None


@dataclass(slots=True)
class _Attempt:
    """One model request, as far as it has come."""

    message_id: str
    started: float
    first_delta: float | None = None
    text: list[str] = field(default_factory=list)


async def _stream(ports: Ports, snapshot: Snapshot, history: History, this: _Attempt) -> Finished:
    request = Request(this.message_id, snapshot.system_prompt, tuple(history.messages), ports.tools.offered)
    async with ports.sink.deltas(this.message_id) as deltas, aclosing(ports.model.stream(request)) as events:
        async for event in events:
            match event:
                case Finished():
                    failpoints.hit("harness.model.after")
                    return event
                case TextDelta(text):
                    this.text.append(text)
                    await deltas.add("text", text)
                case ThinkingDelta(text):
                    await deltas.add("thinking", text)
            failpoints.hit("harness.model.streaming")
            this.first_delta = this.first_delta or ports.clock.monotonic()
    raise AssertionError("a model's stream ends with Finished or a ModelFault")


def _recordable(answer: Finished) -> list[dict[str, Any]]:
    """The blocks as they go into the log. Raises ModelProtocolError for an answer that no event can hold."""
    content = [block_data(block) for block in answer.blocks]
    if (size := len(to_json(content))) > MAX_ANSWER_BYTES:
        raise ModelProtocolError(f"the answer has {size} bytes; expected at most {MAX_ANSWER_BYTES}")
    return content


def _request_end(
    ports: Ports, snapshot: Snapshot, this: _Attempt, usage: Usage, error: str | None
) -> tuple[Fact, Totals]:
    cost = cost_micro_usd(usage, snapshot.model.price)
    ttft = None if this.first_delta is None else this.first_delta - this.started
    data = {
        "message_id": this.message_id,
        "model": snapshot.model.name,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
        },
        "cost_micro_usd": cost,
        "duration_ms": round((ports.clock.monotonic() - this.started) * 1000),
        "ttft_ms": None if ttft is None else round(ttft * 1000),
        "error": error,
    }
    totals = Totals(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cost_micro_usd=cost,
    )
    return Fact("span.model_request_end", data), totals


def _aborted(message_id: str, partial: str, reason: str) -> Fact:
    shown = partial[:PARTIAL_CHARACTERS]
    return Fact("agent.message_aborted", {"message_id": message_id, "partial": shown, "reason": reason})


async def _abort_interrupted(ports: Ports, snapshot: Snapshot, journal: Journal, message_id: str) -> None:
    """Say of an answer that died with its harness how far it had come, as far as the live stream still tells."""
    partial = await ports.sink.recovered_text(message_id)
    end, _ = _request_end(ports, snapshot, _Attempt(message_id, ports.clock.monotonic()), Usage(), "HarnessLost")
    failpoints.hit("harness.aborted.before")
    await journal.append(end, _aborted(message_id, partial, "HarnessLost"))


async def _wait(journal: Journal) -> Ending:
    if not journal.history.waiting:
        failpoints.hit("harness.waiting.before")
        await journal.append(Fact("turn.waiting", {"on": "prompt"}))
    return Ending.WAITING


async def _complete(journal: Journal) -> bool:
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
    completed = Fact("run.completed", {"result": result, "usage": usage, **counts})
    try:
        await journal.finish(completed, seen_prompt=int((journal.history.cursor or OWN_PROMPT_ID).partition("-")[0]))
    except PromptsUnread:
        return False
    return True


async def _fail(journal: Journal, failure: Fail) -> Ending:
    await journal.finish(Fact("run.failed", {"reason": failure.reason, "message": failure.message}))
    return Ending.FINISHED
