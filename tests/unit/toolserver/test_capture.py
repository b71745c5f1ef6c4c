"""What is kept of an output: exact counts, whole characters, bounded size, and text that every consumer accepts."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from towline.toolserver.capture import LIVE_LIMIT, TEXT_LIMIT, Capture, Live, bounded, ends, safe

SMALL_HEAD, SMALL_TAIL = 20, 15

chunks = st.lists(st.binary(max_size=60), max_size=12)
words = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20), max_size=12)


def captured(pieces: list[bytes]) -> Capture:
    capture = Capture(SMALL_HEAD, SMALL_TAIL)
    for piece in pieces:
        capture.add(piece)
    return capture


@given(chunks)
def test_every_byte_is_counted_however_it_arrives(pieces: list[bytes]) -> None:
    whole, one_by_one = captured([b"".join(pieces)]), captured([bytes([byte]) for byte in b"".join(pieces)])
    assert captured(pieces).total == len(b"".join(pieces))
    assert captured(pieces).text() == whole.text() == one_by_one.text()


@given(chunks)
def test_what_fits_is_shown_whole(pieces: list[bytes]) -> None:
    capture, data = captured(pieces), b"".join(pieces)
    assert capture.truncated == (len(data) > SMALL_HEAD + SMALL_TAIL)
    if not capture.truncated:
        assert capture.text() == data.decode("utf-8", "replace").replace("\0", "\ufffd")


@given(words)
def test_valid_text_is_never_cut_inside_a_character_and_the_omission_is_exact(pieces: list[str]) -> None:
    text = "".join(pieces).replace("\0", "").replace("\ufffd", "")
    data = text.encode()
    capture = captured([data])
    if not capture.truncated:
        return
    shown = capture.text()
    head, omitted, tail = re.fullmatch(r"(.*)\n\[… (\d+) bytes omitted …\]\n(.*)", shown, re.DOTALL).groups()  # type: ignore[union-attr]
    assert "\ufffd" not in shown
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head.encode()) + int(omitted) + len(tail.encode()) == len(data)


@given(chunks)
def test_any_bytes_become_text_that_json_and_databases_accept(pieces: list[bytes]) -> None:
    text = captured(pieces).text()
    assert "\0" not in text
    assert json.loads(json.dumps(text, ensure_ascii=False).encode()) == text


def test_a_flood_of_the_widest_replacement_stays_within_the_limit_of_a_result() -> None:
    capture = Capture()
    for _ in range(100):
        capture.add(b"\xff" * 65536)
    assert capture.total == 6_553_600
    assert len(capture.text()) <= TEXT_LIMIT


def test_single_bytes_do_not_grow_the_tail_beyond_twice_its_size() -> None:
    capture = Capture(1, 100)
    for _ in range(10_000):
        capture.add(b"x")
    assert len(capture._tail) <= 200


def test_bounded_tells_whether_the_middle_is_missing() -> None:
    assert bounded(b"all of it") == ("all of it", False)
    text, truncated = bounded(b"a" * 100_000)
    assert truncated
    assert "[… 60200 bytes omitted …]" in text


def test_ends_counts_the_bytes_of_cut_characters_as_omitted() -> None:
    assert ends("aé".encode()[:2], "éb".encode()[1:], 10) == "a\n[… 8 bytes omitted …]\nb"


def test_safe_replaces_nul_and_lone_surrogates_only() -> None:
    assert safe("a\0b\ud800c\U0001f6a2") == "a\ufffdb\ufffd\ufffd\ufffdc\U0001f6a2"


@given(chunks)
def test_live_text_is_the_decoded_stream_as_far_as_it_is_complete(pieces: list[bytes]) -> None:
    live = Live()
    for piece in pieces:
        before = live.text
        assert live.add(piece) == (live.text != before)
        assert live.text.startswith(before)
    assert b"".join(pieces).decode("utf-8", "replace").replace("\0", "\ufffd").startswith(live.text.rstrip("\ufffd"))


def test_live_text_stops_at_its_limit() -> None:
    live = Live()
    for _ in range(40):
        live.add("é".encode() * 4096)
    assert live.text == "é" * LIVE_LIMIT
    assert not live.add(b"more")
