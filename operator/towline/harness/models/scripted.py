"""The scripted model: deterministic answers from the run's snapshot, for tests, demos and newcomers without a key.

The n-th answer of a run is the n-th step, so a resumed run goes on where the log ends. No network, no
randomness; usage is a count of words.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence

from towline.api import snapshot
from towline.api.snapshot import ScriptedStep
from towline.harness.models.base import Finished, Request, StreamEvent, TextDelta, ThinkingDelta, Usage
from towline.harness.transcript import AssistantMessage, Block, Message, Text, Thinking, ToolUse, UserMessage, call_id

_PLACEHOLDER = re.compile(r"\{\{ *prompt\.([1-9][0-9]{0,5}|last) *\}\}")

EXHAUSTED = ScriptedStep(text="The script has no further step.")


def step_at(script: Sequence[ScriptedStep], index: int) -> ScriptedStep:
    """The step after `index` answers; past the end, a final answer that says so."""
    return script[index] if index < len(script) else EXHAUSTED


def words(text: str) -> list[str]:
    """`text` cut behind each run of spaces, so that joining gives it back."""
    return re.findall(r" *[^ ]+ *|^ +$", text)


def filled(text: str, prompts: Sequence[str]) -> str:
    """`text` with each {{prompt.N}} replaced by the N-th prompt of the conversation, {{prompt.last}} by the last.

    So a script shows what a model remembers: the prompts it is sent, no others.
    """

    def prompt(match: re.Match[str]) -> str:
        place = len(prompts) if match[1] == "last" else int(match[1])
        return prompts[place - 1] if 1 <= place <= len(prompts) else f"(no prompt {match[1]})"

    return _PLACEHOLDER.sub(prompt, text)


class Scripted:
    """The Model port over a script."""

    def __init__(self, model: snapshot.Model) -> None:
        self._script = model.script

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        prompts = [message.text for message in request.messages if isinstance(message, UserMessage)]
        if request.purpose == "summary":
            step = ScriptedStep(text=_summary(prompts[:-1]))
        else:
            step = step_at(self._script, request.answers)
            step = step.model_copy(update={"text": filled(step.text, prompts)})
        read = _word_count(request.messages)
        yield Usage(read)
        for word in words(step.thinking):
            await asyncio.sleep(step.chunk_milliseconds / 1000)
            yield ThinkingDelta(word)
        for word in words(step.text):
            await asyncio.sleep(step.chunk_milliseconds / 1000)
            yield TextDelta(word)
        yield Finished(
            blocks=_blocks(step, request.message_id),
            stop_reason="tool_use" if step.tool_calls else "end_turn",
            usage=Usage(read, len(f"{step.thinking} {step.text}".split())),
        )


def _summary(prompts: Sequence[str]) -> str:
    """What a script can say of a conversation: its prompts, in short."""
    return "The prompts so far: " + " / ".join(prompt[:200] for prompt in prompts)


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
