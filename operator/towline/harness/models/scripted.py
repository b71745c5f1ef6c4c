"""The scripted model: deterministic answers from the run's snapshot, for tests, demos and newcomers without a key.

The n-th assistant message of a run is the n-th step, so a resumed run goes on where the log ends. No network, no
randomness; usage is a count of words.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence

from towline.api import snapshot
from towline.api.snapshot import ScriptedStep
from towline.harness.models.base import Finished, Request, StreamEvent, TextDelta, ThinkingDelta, Usage
from towline.harness.transcript import AssistantMessage, Block, Message, Text, Thinking, ToolUse, UserMessage, call_id

EXHAUSTED = ScriptedStep(text="The script has no further step.")


def step_at(script: Sequence[ScriptedStep], index: int) -> ScriptedStep:
    """The step for a history of `index` assistant messages; past the end, a final answer that says so."""
    return script[index] if index < len(script) else EXHAUSTED


def words(text: str) -> list[str]:
    """`text` cut behind each run of spaces, so that joining gives it back."""
    return re.findall(r" *[^ ]+ *|^ +$", text)


class Scripted:
    """The Model port over a script."""

    def __init__(self, model: snapshot.Model) -> None:
        self._script = model.script

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        step = step_at(self._script, sum(isinstance(message, AssistantMessage) for message in request.messages))
        for word in words(step.thinking):
            await asyncio.sleep(step.chunk_milliseconds / 1000)
            yield ThinkingDelta(word)
        for word in words(step.text):
            await asyncio.sleep(step.chunk_milliseconds / 1000)
            yield TextDelta(word)
        yield Finished(
            blocks=_blocks(step, request.message_id),
            stop_reason="tool_use" if step.tool_calls else "end_turn",
            usage=Usage(_word_count(request.messages), len(f"{step.thinking} {step.text}".split())),
        )


def _blocks(step: ScriptedStep, message_id: str) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if step.thinking:
        blocks.append(Thinking(step.thinking, {}))
    if step.text:
        blocks.append(Text(step.text))
    for index, call in enumerate(step.tool_calls):
        blocks.append(ToolUse(call_id(message_id, index), call.name, call.arguments))
    return tuple(blocks)


def _word_count(messages: Sequence[Message]) -> int:
    total = 0
    for message in messages:
        match message:
            case UserMessage(text):
                total += len(text.split())
            case AssistantMessage():
                total += len(message.text.split()) + sum(len(r.text.split()) for r in message.results.values())
    return total
