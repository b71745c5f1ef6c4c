"""What a request has cost: the provider's word, and the length where it has none."""

import pytest

from towline.harness.models.base import Request, Tool, Usage
from towline.harness.sizes import request_tokens, tokens_in, usage_at_least
from towline.harness.transcript import UserMessage

REQUEST = Request("msg_a", "s" * 100, (UserMessage("x" * 400),), (Tool("a", "b" * 97, {}),))  # 600 characters


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_four_characters_are_a_token(length, tokens):
    assert tokens_in(length) == tokens


def test_a_request_is_prompt_tools_and_messages():
    assert request_tokens(REQUEST) == 150


@pytest.mark.parametrize(
    ("reported", "written", "usage"),
    [
        (Usage(), 0, Usage(150, 0)),
        (Usage(), 10, Usage(150, 3)),
        (Usage(200, 1, 50), 10, Usage(200, 3, 50)),  # what a provider says at the beginning of an answer
        (Usage(200, 7), 10, Usage(200, 7)),
    ],
)
def test_what_was_reported_counts_and_the_length_where_nothing_was(reported, written, usage):
    assert usage_at_least(reported, REQUEST, written) == usage
