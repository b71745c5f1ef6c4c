"""Blocks and tool uses: what a model wrote, however broken, becomes something that can be recorded and sent back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.events.adopted import MAX_UNPARSABLE_CHARACTERS
from towline.harness.transcript import (
    Native,
    Text,
    Thinking,
    ToolUse,
    block_data,
    block_from,
    call_id,
    tool_use,
    well_formed,
)


@pytest.mark.parametrize(
    "block",
    [
        Text("a"),
        Thinking("hm", {"type": "thinking", "thinking": "hm", "signature": "s"}),
        Native({"type": "server_tool_use", "id": "x"}),
        ToolUse("tc_a_0", "exec", {"command": "ls"}, "", "toolu_1"),
        ToolUse("tc_a_1", "exec", None, '{"command": ', "toolu_1"),
        ToolUse("tc_a_2", "exec", {}, "", ""),
    ],
)
def test_a_block_survives_the_log(block):
    assert block_from(json.loads(json.dumps(block_data(block)))) == block


def test_a_call_id_is_made_of_message_and_place():
    assert call_id("msg_0123456789ab", 12) == "tc_0123456789ab_12"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("{", None),
        ("[1]", None),
        ('"text"', None),
        ("null", None),
        ('{"a": NaN}', None),
        ('{"a": 1e999}', None),
        ('{"a": "\\ud800"}', None),
        ('{"a": "\ud83d' + '\ude00"}', {"a": "\N{GRINNING FACE}"}),
        ('{"a": "\\ud83d' + '\\ude00"}', {"a": "\N{GRINNING FACE}"}),
        ('{"a": ' + "[" * 100_000, None),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", None),
        ('{"a": "' + "x" * 1_000_000 + '"}', None),
    ],
)
def test_arguments_are_an_object_that_every_reader_takes_or_none(text, arguments):
    use = tool_use("msg_a", 0, "exec", text, "id")

    assert use.arguments == arguments
    assert use.unparsable == ("" if arguments is not None else text[:MAX_UNPARSABLE_CHARACTERS])


@given(st.text(max_size=20), st.text(max_size=20))
def test_whatever_a_model_writes_can_be_encoded(name, text):
    use = tool_use("msg_a", 0, name, text, name)

    json.dumps(block_data(use), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "expected"), [("plain", "plain"), ("\ud83d\ude00", "\N{GRINNING FACE}"), ("a\ud83d", "a\ufffd")]
)
def test_halves_of_a_character_are_joined_and_lone_ones_replaced(text, expected):
    assert well_formed(text) == expected
