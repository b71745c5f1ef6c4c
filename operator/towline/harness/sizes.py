"""How large a model request is, in tokens, where no provider has counted.

Called by `compaction.py` for the next request and by `asking.py` for what one has cost. Pure.
"""

import json
from collections.abc import Iterable
from dataclasses import replace

from towline.harness.models.base import Request, Tool, Usage
from towline.harness.transcript import characters

CHARACTERS_PER_TOKEN = 4
"""Of English and of code, roughly."""


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
