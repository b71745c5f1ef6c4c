import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.gateway.strict_json import MAX_DEPTH, Malformed, canonical, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_every_plain_object_is_read_as_it_was_written(value):
    assert loads(json.dumps(value).encode()) == value
    assert loads(canonical(value)) == value


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_equal_values_have_one_canonical_spelling(value):
    shuffled = dict(reversed(list(value.items())))

    assert canonical(shuffled) == canonical(value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b"{} {}",
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"\\u0061":2}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":' + b"1" * 5000 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_text_that_two_readers_may_read_differently_is_refused(raw):
    with pytest.raises(Malformed):
        loads(raw)


def test_nesting_is_bounded_exactly():
    inner = MAX_DEPTH - 1  # the object around it is a level of its own
    assert loads(b'{"a":' + b"[" * inner + b"]" * inner + b"}")

    with pytest.raises(Malformed, match="deep"):
        loads(b'{"a":' + b"[" * (inner + 1) + b"]" * (inner + 1) + b"}")


def test_many_brackets_side_by_side_are_not_deep():
    assert len(loads(b'{"a":[' + b"[]," * 1000 + b"[]]}")["a"]) == 1001


def test_a_lone_surrogate_becomes_a_question_mark_and_a_pair_stays():
    assert loads(b'{"a":"x\\ud800y","b":"\\ud83d\\ude00"}') == {"a": "x?y", "b": "😀"}
