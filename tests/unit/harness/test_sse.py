"""The event-stream parser gives the same events whatever the chunks, and never holds more than its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.harness.models.sse import ServerSentEvent, SseParser, SseTooLarge


def parse(*chunks, limit=1 << 20):
    parser = SseParser(limit)
    return [event for chunk in chunks for event in parser.feed(chunk)]


LINES = st.lists(
    st.one_of(
        st.just(""),
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12).map("data: {}".format),
        st.sampled_from([": ping", "event: x", "event", "data", "data:", "id: 4", "retry: 5", "other: y", ":"]),
    ),
    max_size=24,
)


@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_chunk_boundaries_do_not_matter(lines, newline, data):
    raw = "".join(line + newline for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    chunks = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    assert parse(*chunks) == parse(raw)
    assert parse(*(raw[i : i + 1] for i in range(len(raw)))) == parse(raw)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_fields_are_read_as_the_standard_says(newline):
    text = newline.join(
        ["\ufeff: comment", "event: named", "data: one", "data:two", "data:  three", "id: 1", "nonsense", "", ""]
    )

    assert parse(text.encode()) == [ServerSentEvent("named", "one\ntwo\n three")]


def test_an_event_without_data_is_none_and_its_name_is_forgotten():
    assert parse(b"event: lost\n\ndata: x\n\n") == [ServerSentEvent("message", "x")]


def test_a_line_feed_after_a_chunk_that_ends_in_carriage_return_is_no_blank_line():
    assert parse(b"data: a\r", b"\ndata: b\r", b"\n\r\n") == [ServerSentEvent("message", "a\nb")]


def test_an_event_cut_off_by_the_end_is_not_given_out():
    assert parse(b"data: whole\n\ndata: half\n") == [ServerSentEvent("message", "whole")]


def test_other_line_separators_of_unicode_belong_to_the_data():
    assert parse("data: a\u2028b\x0bc\x85d\n\n".encode()) == [ServerSentEvent("message", "a\u2028b\x0bc\x85d")]


@pytest.mark.parametrize("raw", [b"data: " + b"x" * 200, b"data: x\n" * 50, b"x" * 200, b"event: " + b"x" * 200])
def test_an_event_beyond_the_limit_is_refused_before_it_is_complete(raw):
    with pytest.raises(SseTooLarge):
        parse(raw, limit=100)


def test_hours_of_comments_do_not_reach_the_limit():
    assert parse(*[b": ping\n\n"] * 100, b"data: x\n\n", *[b": ping\n"] * 100, limit=50) != []


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(UnicodeDecodeError):
        parse(b"data: \xff\n\n")
