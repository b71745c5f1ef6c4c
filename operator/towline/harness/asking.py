"""Asking the model: one attempt at an answer, told by events on the way, with the pause after one that failed.

Called by the loop for answers and for the summary of a compaction. An interruption breaks the stream off at once, and
what was said until then is kept.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from towline import failpoints
from towline.api.snapshot import Snapshot
from towline.errors import Invalid
from towline.events.event import to_json
from towline.events.totals import Totals
from towline.harness.compaction import Cut, compacted, to_summarise
from towline.harness.fitting import left_out, sendable
from towline.harness.fold import INTERRUPTED
from towline.harness.journal import Fact, Journal
from towline.harness.mail import Interrupted, Mail
from towline.harness.models.base import (
    Finished,
    ModelFault,
    ModelProtocolError,
    Request,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from towline.harness.ports import Ports
from towline.harness.sizes import usage_at_least, window_for
from towline.harness.steps import Fail, cost_micro_usd, retry_delay_seconds, stopped_short
from towline.harness.transcript import AssistantMessage, Message, Text, ToolUse, block_data, characters, well_formed

MAX_ANSWER_BYTES = 7 << 20
"""Of one answer as JSON: an event holds 8 MiB."""

PARTIAL_CHARACTERS = 65_536
"""How much of a broken answer `agent.message_aborted` keeps."""

SUMMARY_CHARACTERS = 200_000
"""A summary is to be shorter than what it replaces."""

LOST = "HarnessLost"

Recordable = dict[str, Any]
"""Data of `agent.message`."""


@dataclass(slots=True)
class _Attempt:
    """One model request, as far as it has come."""

    message_id: str
    started: float
    shown: bool = True
    """Whether the answer is one for the reader: a summary is not."""
    first_delta: float | None = None
    text: list[str] = field(default_factory=list)
    written: int = 0
    """Characters of text and thinking."""
    usage: Usage | None = None
    """What the provider reported before the end."""


@dataclass(frozen=True, slots=True)
class Asker:
    """What every model request of a run needs."""

    ports: Ports
    snapshot: Snapshot
    journal: Journal
    mail: Mail

    async def answer(self) -> Fail | None:
        """Try to get the next answer into the log. None as well when that failed and may be tried again, or when a
        person interrupted it: the log has what was said."""
        history = self.journal.history
        request = self._request(history.messages)
        got = await self._attempt(request, shown=True)
        if not isinstance(got, tuple):
            return got
        this, answer, message = got
        end, totals = self._end(this, answer.usage, None)
        failpoints.hit("harness.answer.before")
        await self.journal.append(end, Fact("agent.message", message), totals=totals)
        failpoints.hit("harness.answer.after")
        return None

    async def summary(self, cut: Cut) -> Fail | None:
        """Try to replace what is before `cut` by the model's summary. None as well when nothing came of it."""
        history = self.journal.history
        got = await self._attempt(self._request(to_summarise(history, cut), purpose="summary"), shown=False)
        if not isinstance(got, tuple):
            return got
        this, answer, _ = got
        end, totals = self._end(this, answer.usage, None)
        text = "".join(block.text for block in answer.blocks if isinstance(block, Text))
        failure = stopped_short(answer.stop_reason, text)
        if failure is None and not text.strip():
            failure = Fail("EmptyAnswer", "the model gave no summary of a conversation that is too long to go on with")
        if failure is not None:
            await self.journal.append(end, totals=totals)
            return failure
        data = compacted(history, cut, text[:SUMMARY_CHARACTERS], history.totals + totals)
        failpoints.hit("harness.compact.before")
        await self.journal.append(end, Fact("context.compacted", data), totals=totals)
        failpoints.hit("harness.compact.after")
        return None

    async def close_unfinished(self) -> None:
        """Say of an answer that died with its harness how far it had come, as far as the live stream still tells."""
        history = self.journal.history
        message_id = history.unfinished_message
        if message_id is None and history.unfinished_request is None:
            return
        facts: list[Fact] = []
        if history.unfinished_request is not None:
            this = _Attempt(history.unfinished_request, self.ports.clock.monotonic())
            facts.append(self._end(this, Usage(), LOST)[0])
        if message_id is not None:
            facts.append(_aborted(message_id, await self.ports.sink.recovered_text(message_id), LOST))
        failpoints.hit("harness.aborted.before")
        await self.journal.append(*facts)

    def _request(self, messages: Sequence[Message], purpose: Literal["answer", "summary"] = "answer") -> Request:
        """The tools are offered for a summary, too, which must not use them: Bedrock refuses a conversation that has
        used some without them, and the Messages API finds nothing of what it has cached."""
        history, offered = self.journal.history, self.ports.tools.offered
        sent = sendable(history, messages, window_for(self.snapshot, offered))
        return Request(
            message_id=self.ports.clock.new_message_id(),
            system=self.snapshot.system_prompt,
            messages=sent,
            tools=offered,
            answers=history.answers,
            purpose=purpose,
            left_out=left_out(messages, sent),
        )

    async def _attempt(self, request: Request, *, shown: bool) -> "tuple[_Attempt, Finished, Recordable] | Fail | None":
        """The answer and what it took; a Fail when there is none to be had; None to decide again what comes next.

        That is so after an interruption, and after the pause that a failed attempt is followed by: a steering prompt
        may have come, or a limit be reached.
        """
        this = _Attempt(request.message_id, self.ports.clock.monotonic(), shown)
        await self.journal.append(*self._start(this, request.left_out))
        failpoints.hit("harness.model.before")
        try:
            answer = _counted(await self.mail.unless_interrupted(self._stream(request, this)), request)
            if request.purpose == "summary":
                _check_summary(answer)
            return this, answer, recordable(this.message_id, answer)
        except Interrupted:
            failpoints.hit("harness.interrupted")
            await self._record_interruption(this, request)
            failpoints.hit("harness.interrupted.after")
            return None
        except ModelFault as fault:
            return await self._record_fault(this, request, fault)

    async def _record_fault(self, this: _Attempt, request: Request, fault: ModelFault) -> Fail | None:
        attempt = self.journal.history.failed_attempts + 1
        # A request that was refused has cost nothing; one whose answer had begun was read.
        begun = this.written > 0 or this.usage is not None
        usage = usage_at_least(fault.usage, request, this.written) if begun else fault.usage
        end, totals = self._end(this, usage, fault.reason)
        facts = [end, *self._aborted(this, fault.reason)]
        delay = retry_delay_seconds(attempt, fault.attempts, fault.retry_after_seconds)
        if delay is None:
            await self.journal.append(*facts, totals=totals)
            return Fail(fault.reason, f"{fault} (attempt {attempt})" if attempt > 1 else str(fault))
        retrying = {"reason": f"{fault.reason}: {fault}", "attempt": attempt, "delay_seconds": delay}
        await self.journal.append(*facts, Fact("turn.retrying", retrying), totals=totals)
        failpoints.hit("harness.retry.waiting")
        try:
            await self.mail.unless_interrupted(self.ports.clock.sleep(delay))
        except Interrupted:
            pass  # the next step is its
        return None

    async def _stream(self, request: Request, this: _Attempt) -> Finished:
        async with AsyncExitStack() as closing:
            deltas = await closing.enter_async_context(self.ports.sink.deltas(this.message_id)) if this.shown else None
            events = await closing.enter_async_context(aclosing(self.ports.model.stream(request)))
            async for event in events:
                failpoints.hit("harness.model.streaming")
                match event:
                    case Finished():
                        failpoints.hit("harness.model.after")
                        return event
                    case Usage():
                        this.usage = event
                        continue
                    case TextDelta(text):
                        this.text.append(text)
                        this.written += len(text)
                        if deltas is not None:
                            await deltas.add("text", text)
                    case ThinkingDelta(text):
                        this.written += len(text)
                        if deltas is not None:
                            await deltas.add("thinking", text)
                this.first_delta = this.first_delta or self.ports.clock.monotonic()
        raise AssertionError("a model's stream ends with Finished or a ModelFault")

    async def _record_interruption(self, this: _Attempt, request: Request) -> None:
        usage = usage_at_least(this.usage or Usage(), request, this.written)
        end, totals = self._end(this, usage, INTERRUPTED)
        await self.journal.append(end, *self._aborted(this, INTERRUPTED), totals=totals)

    def _start(self, this: _Attempt, left_out: int) -> list[Fact]:
        asked = {"message_id": this.message_id, "model": self.snapshot.model.name, "left_out": left_out}
        start = Fact("span.model_request_start", asked)
        return [start, Fact("agent.message_start", {"message_id": this.message_id})] if this.shown else [start]

    def _aborted(self, this: _Attempt, reason: str) -> list[Fact]:
        return [_aborted(this.message_id, "".join(this.text), reason)] if this.shown else []

    def _end(self, this: _Attempt, usage: Usage, error: str | None) -> tuple[Fact, Totals]:
        cost = cost_micro_usd(usage, self.snapshot.model.price)
        ttft = None if this.first_delta is None else this.first_delta - this.started
        data = {
            "message_id": this.message_id,
            "model": self.snapshot.model.name,
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cached_input_tokens": usage.cached_input_tokens,
            },
            "cost_micro_usd": cost,
            "duration_ms": round((self.ports.clock.monotonic() - this.started) * 1000),
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


def _counted(answer: Finished, request: Request) -> Finished:
    """The answer with what it cost, also where the provider does not say."""
    if answer.usage != Usage():
        return answer
    written = characters(AssistantMessage(request.message_id, answer.blocks))
    return replace(answer, usage=usage_at_least(answer.usage, request, written))


def recordable(message_id: str, answer: Finished) -> Recordable:
    """The answer as it goes into the log. Raises ModelProtocolError for one that no event can hold."""
    content = [block_data(block) for block in answer.blocks]
    message = {"message_id": message_id, "content": content, "stop_reason": answer.stop_reason}
    try:
        size = len(to_json(message))
    except (Invalid, RecursionError) as wrong:
        raise _broken(answer, f"no event can hold the answer: {wrong}") from None
    if size > MAX_ANSWER_BYTES:
        raise _broken(answer, f"the answer has {size} bytes; expected at most {MAX_ANSWER_BYTES}")
    return message


def _check_summary(answer: Finished) -> None:
    """Raises ModelProtocolError for tool uses: what stands beside them are words on the way, not the summary."""
    if any(isinstance(block, ToolUse) for block in answer.blocks):
        raise _broken(answer, "the model used a tool where only the summary of the conversation was asked for")


def _broken(answer: Finished, why: str) -> ModelProtocolError:
    """An answer that is complete and cannot be used: it costs what it cost."""
    fault = ModelProtocolError(why)
    fault.usage = answer.usage
    return fault


def _aborted(message_id: str, partial: str, reason: str) -> Fact:
    shown = well_formed(partial[:PARTIAL_CHARACTERS])
    return Fact("agent.message_aborted", {"message_id": message_id, "partial": shown, "reason": reason})
