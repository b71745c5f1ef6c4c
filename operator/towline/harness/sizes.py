"""How large a model request is, in tokens, and how large it may be.

Called by `compaction.py` and `fitting.py` for the next request and by `asking.py` for what one has cost. Pure.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from towline.api.snapshot import Snapshot
from towline.harness.fold import History
from towline.harness.models.base import Request, Tool, Usage
from towline.harness.transcript import characters

CHARACTERS_PER_TOKEN = 4
"""Of English and of code, roughly; only used for what no provider has counted yet."""

FULL = 0.8
"""Share of the model's context beyond which a history is compacted, if the answer does not need more room."""


@dataclass(frozen=True, slots=True)
class Window:
    """A model's context. Providers refuse a request that leaves no room there for `answer_tokens`."""

    context_tokens: int
    answer_tokens: int = 0
    """The bound on the answer that is sent with each request."""
    head_characters: int = 0
    """Of what every request begins with: system prompt and tools."""

    @property
    def room(self) -> int:
        """How many tokens a request may have. An answer bound that leaves none at all is no reserve, then."""
        left = self.context_tokens - self.answer_tokens
        return left if left > 0 else self.context_tokens

    @property
    def full(self) -> int:
        """The tokens beyond which a history is compacted."""
        return min(int(FULL * self.context_tokens), self.room)


def window_for(snapshot: Snapshot, tools: Iterable[Tool] = ()) -> Window:
    """The context of the run's model, with what the run and its tools take of it."""
    model = snapshot.model
    return Window(model.context_tokens, model.max_output_tokens, head_characters(snapshot.system_prompt, tools))


def tokens_of(history: History, head_characters: int = 0) -> int:
    """About how many tokens the next request has: as the provider counted the last one, and what came since by its
    length; or all by its length, should that be more."""
    since = history.characters - history.request_characters
    return max(history.request_tokens + tokens_in(since), tokens_in(head_characters + history.characters))


def tokens_in(length: int) -> int:
    """About how many tokens so many characters are; never 0 for some."""
    return -(-length // CHARACTERS_PER_TOKEN)


def head_characters(system: str, tools: Iterable[Tool]) -> int:
    """Length of what every request begins with."""
    schemas = (tool.name + tool.description + json.dumps(tool.input_schema) for tool in tools)
    return len(system) + sum(map(len, schemas))


def request_tokens(request: Request) -> int:
    """About how many tokens a request has, by its length."""
    return tokens_in(head_characters(request.system, request.tools) + sum(map(characters, request.messages)))


def usage_at_least(reported: Usage, request: Request, written: int) -> Usage:
    """What a request has cost whose answer has come as far as `written` characters: as reported, and where a provider
    says nothing, or not yet, by the length. Without that, no limit would ever be reached with one that never does."""
    asked = reported.input_tokens or request_tokens(request)
    return replace(reported, input_tokens=asked, output_tokens=max(reported.output_tokens, tokens_in(written)))
