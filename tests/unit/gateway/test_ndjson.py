import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.gateway.ndjson import Lines, TooMuch


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" ")), max_size=8), st.data())
def test_lines_come_out_the_same_however_they_are_cut(lines, data):
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = Lines()

    assert [line for piece in pieces for line in reader.feed(piece)] == lines


def test_what_follows_the_last_newline_waits():
    reader = Lines()

    assert reader.feed(b"a\nb") == [b"a"]
    assert reader.feed(b"c\n") == [b"bc"]


@pytest.mark.parametrize("chunk", [b"a" * 11, b"a" * 11 + b"\n", b"x\n" + b"a" * 11])
def test_a_line_above_its_limit_is_refused_ended_or_not(chunk):
    with pytest.raises(TooMuch, match="one line"):
        Lines(line_bytes=10).feed(chunk)


def test_all_lines_together_are_bounded():
    reader = Lines(total_bytes=10)
    reader.feed(b"aaaa\naaaa\n")

    with pytest.raises(TooMuch, match="one answer"):
        reader.feed(b"a")


def test_a_megabyte_of_single_bytes_is_read_in_linear_time():
    reader = Lines()

    for _ in range(500_000):
        reader.feed(b"a")

    assert reader.feed(b"\n")[0] == b"a" * 500_000
