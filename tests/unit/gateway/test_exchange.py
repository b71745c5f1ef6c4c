import pytest

from towline.errors import Invalid
from towline.events.event import Seen
from towline.gateway.exchange import ToolAnswer, ToolRequest, read_request

META = {"towline.dev/call-id": "tc_1"}


def test_a_call_is_read_from_its_parameters():
    request = read_request({"name": "exec", "arguments": {"command": "ls"}, "_meta": META})

    assert request == ToolRequest("tc_1", "exec", {"command": "ls"})


def test_a_call_may_be_asked_to_end():
    request = read_request({"name": "exec", "_meta": {**META, "towline.dev/cancel": True}})

    assert (request.cancel, request.call_id) == (True, "tc_1")
    assert request.args_hash == read_request({"name": "exec", "_meta": META}).args_hash


@pytest.mark.parametrize(
    ("told", "seen"),
    [("9 1 ev_0123456789abcdef0123", Seen(9, 1, "ev_0123456789abcdef0123")), ("11 2", Seen(11, 2)), (None, Seen())],
)
def test_a_caller_says_up_to_where_it_saw_the_log(told, seen):
    assert read_request({"name": "exec", "_meta": {**META, "towline.dev/seen": told}}).seen == seen


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": {}}])
def test_absent_arguments_are_none(arguments):
    assert read_request({"name": "list_dir", "_meta": META, **arguments}).arguments == {}


def test_without_an_id_every_call_is_a_new_one():
    first, second = read_request({"name": "exec"}), read_request({"name": "exec"})

    assert first.call_id != second.call_id


def test_arguments_that_were_no_object_come_as_their_raw_text():
    request = read_request({"name": "exec", "_meta": {**META, "towline.dev/unparsable": '{"a'}})

    assert (request.arguments, request.unparsable) == ({}, '{"a')


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({}, "params.name"),
        ({"name": ""}, "params.name"),
        ({"name": 5}, "params.name"),
        ({"name": "exec", "arguments": []}, "params.arguments: expected an object, got list"),
        ({"name": "exec", "arguments": "{}"}, "params.arguments: expected an object, got str"),
        ({"name": "exec", "_meta": []}, "params._meta"),
        ({"name": "exec", "_meta": {"towline.dev/call-id": 5}}, "expected a call id"),
        ({"name": "exec", "_meta": {"towline.dev/call-id": "a" * 41}}, "expected a call id"),
        ({"name": "exec", "_meta": {"towline.dev/call-id": "tc_1\n"}}, "expected a call id"),
        ({"name": "exec", "_meta": {"towline.dev/unparsable": 5}}, "expected text"),
        ({"name": "exec", "_meta": {**META, "towline.dev/cancel": "yes"}}, "expected true or false"),
        ({"name": "exec", "_meta": {**META, "towline.dev/seen": "9 1 "}}, "towline.dev/seen"),
        ({"name": "exec", "_meta": {"towline.dev/cancel": True}}, "the call id beside it"),
        ({"name": "exec", "arguments": {"a": 1}, "_meta": {"towline.dev/unparsable": "x"}}, "no arguments beside"),
    ],
)
def test_what_is_no_call_is_refused_with_the_field(params, complaint):
    with pytest.raises(Invalid, match=None) as caught:
        read_request(params)

    assert complaint in str(caught.value)


def test_the_hash_knows_tool_and_arguments_but_not_their_spelling():
    one = ToolRequest("tc_1", "exec", {"a": 1, "b": [1, 2]})

    assert one.args_hash == ToolRequest("tc_2", "exec", {"b": [1, 2], "a": 1}).args_hash
    others = [
        ToolRequest("tc_1", "exec", {"a": 1, "b": [2, 1]}),
        ToolRequest("tc_1", "exec", {"a": "1", "b": [1, 2]}),
        ToolRequest("tc_1", "read_file", {"a": 1, "b": [1, 2]}),
        ToolRequest("tc_1", "exec", {}, "x"),
        ToolRequest("tc_1", "exec", {}),
    ]
    assert len({one.args_hash, *(other.args_hash for other in others)}) == 6


@pytest.mark.parametrize(("outcome", "is_error"), [("ok", False), ("error", True), ("denied", True), ("unknown", True)])
def test_an_answer_is_plain_text_with_its_outcome_beside_it(outcome, is_error):
    assert ToolAnswer("tc_1", outcome, "hello", False).to_mcp() == {
        "content": [{"type": "text", "text": "hello"}],
        "isError": is_error,
        "resultType": "complete",
        "_meta": {
            "towline.dev/call-id": "tc_1",
            "towline.dev/outcome": outcome,
            "towline.dev/truncated": False,
        },
    }
