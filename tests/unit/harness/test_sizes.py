"""How large a request is, may be and was: the provider's word, and the length where it has none."""

import pytest

from tests.unit.harness.test_compaction import grown
from towline.harness.models.base import Request, Tool, Usage
from towline.harness.sizes import Window, request_tokens, tokens_in, tokens_of, usage_at_least
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


@pytest.mark.parametrize(
    ("window", "room", "full"),
    [
        (Window(200_000, 8_192), 191_808, 160_000),
        (Window(32_768, 8_192), 24_576, 24_576),
        (Window(1000, 8_192), 1000, 800),  # no provider would take that; no reason to send nothing
    ],
)
def test_a_request_leaves_room_for_the_answer(window, room, full):
    assert (window.room, window.full) == (room, full)


@pytest.mark.parametrize(
    ("history", "head", "tokens"),
    [
        (grown(4000), 0, 1000),
        (grown(4000), 400, 1100),
        (grown(4000, request_tokens=3000), 400, 3000),
        (grown(30_000, request_tokens=25_000, since=[40_000]), 0, 35_000),
        (grown(30_000, request_tokens=5_000, since=[40_000]), 0, 17_500),  # never less than the length says
    ],
)
def test_a_history_is_what_the_provider_counted_and_what_came_since(history, head, tokens):
    assert tokens_of(history, head) == tokens
