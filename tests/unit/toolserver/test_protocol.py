"""The request parser takes what we send and refuses everything else."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from towline.toolserver.protocol import (
    BODY_LIMIT,
    HEADER_COUNT_LIMIT,
    TARGET_LIMIT,
    Refused,
    chunk,
    encode,
    parse_body,
    parse_head,
    response,
)

GOOD = b"PUT /v1/calls/a HTTP/1.1\r\nHost: sandbox\r\nContent-Length: 12\r\nTowline-Ack: a, b"


def refusal(raw: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_head(raw)
    assert caught.value.close, "after a malformed head nobody knows where the next request begins"
    return caught.value


def test_a_request_of_the_gateway_is_understood() -> None:
    head = parse_head(GOOD)
    assert (head.method, head.path, head.length) == ("PUT", "/v1/calls/a", 12)
    assert head.headers == {"host": "sandbox", "content-length": "12", "towline-ack": "a, b"}


def test_header_names_are_lowered_and_values_stripped() -> None:
    head = parse_head(b"GET / HTTP/1.1\r\nHOST:\t x y \t\r\nEmpty:")
    assert head.headers == {"host": "x y", "empty": ""}
    assert head.length == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"GET",
        b"GET /",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1\n",
        b"get / HTTP/1.1",
        b"GET\t/ HTTP/1.1",
        b"GET http://sandbox/v1/health HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET v1/health HTTP/1.1",
        b"GET /v1/he alth HTTP/1.1",
        b"GET /v1/\x00 HTTP/1.1",
        b"GET /v1/\xc3\xa9 HTTP/1.1",
        b"GET / FTP/1.1",
        b"GET / HTTP/11",
        b"PRI * HTTP/2.0",
    ],
)
def test_a_strange_request_line_is_refused(raw: bytes) -> None:
    assert refusal(raw + b"\r\nHost: x").status == 400


@pytest.mark.parametrize("version", [b"1.0", b"2.0", b"0.9"])
def test_another_version_is_refused(version: bytes) -> None:
    assert refusal(b"GET / HTTP/" + version + b"\r\nHost: x").status == 505


@pytest.mark.parametrize(
    "header",
    [
        b"Name : value",
        b" Folded: value",
        b"\tfolded",
        b"NoColon",
        b": no name",
        b"Bad\x00Name: x",
        b"Name: val\x00ue",
        b"Name: val\rue",
        b"Name: val\nue",
        b"Name: caf\xc3\xa9",
        b"Na(me: x",
        b"N" * 129 + b": x",
        b"",
    ],
)
def test_a_malformed_header_is_refused(header: bytes) -> None:
    assert refusal(b"GET / HTTP/1.1\r\nHost: x\r\n" + header).status == 400


def test_a_header_that_occurs_twice_is_refused_whatever_its_case() -> None:
    assert refusal(b"GET / HTTP/1.1\r\nHost: x\r\nhost: x").status == 400
    assert refusal(GOOD + b"\r\ncontent-length: 12").status == 400


def test_a_request_without_host_is_refused() -> None:
    assert refusal(b"GET / HTTP/1.1\r\nAccept: x").status == 400


@pytest.mark.parametrize("length", ["-1", "+1", "1 2", "0x10", "1,1", "", "1e3", "١", "12345678901"])
def test_a_content_length_that_is_no_whole_number_is_refused(length: str) -> None:
    raw = f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}".encode()
    assert refusal(raw).status == 400


def test_chunked_bodies_are_refused_and_never_beside_a_length() -> None:
    assert refusal(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked").status == 501
    assert refusal(GOOD + b"\r\nTransfer-Encoding: chunked").status == 400
    assert refusal(GOOD + b"\r\nTransfer-Encoding: identity").status == 400


def test_limits_are_named_by_their_status() -> None:
    head = b"PUT / HTTP/1.1\r\nHost: x\r\n"
    assert parse_head(head + b"Content-Length: %d" % BODY_LIMIT).length == BODY_LIMIT
    assert refusal(head + b"Content-Length: %d" % (BODY_LIMIT + 1)).status == 413
    assert refusal(b"PUT /%b HTTP/1.1\r\nHost: x" % (b"a" * TARGET_LIMIT)).status == 414
    assert refusal(head + b"\r\n".join(b"N%d: x" % n for n in range(HEADER_COUNT_LIMIT))).status == 431
    assert refusal(head + b"Expect: 100-continue").status == 417


@given(st.binary(max_size=400))
@example(GOOD)
def test_any_bytes_are_parsed_or_refused_and_nothing_else(raw: bytes) -> None:
    try:
        head = parse_head(raw)
    except Refused:
        return
    assert head.path.startswith("/")
    assert 0 <= head.length <= BODY_LIMIT


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=1))
def test_a_flipped_byte_never_smuggles_a_second_length(at: int, byte: bytes) -> None:
    try:
        head = parse_head(GOOD[:at] + byte + GOOD[at + 1 :])
    except Refused:
        return
    assert head.length == int(head.headers.get("content-length", "0"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"null",
        b'{"a":1}{"b":2}',
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1',
        b'\xff{"a":1}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_strict_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        parse_body(body)
    assert caught.value.status == 400
    assert not caught.value.close, "the body was read, so the connection can go on"


def test_responses_carry_their_length_and_streams_their_chunks() -> None:
    assert response(401, {"error": "é"}, close=True) == (
        b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 14\r\n"
        b'Connection: close\r\n\r\n{"error":"\xc3\xa9"}'
    )
    assert chunk(b"0123456789abcdef") == b"11\r\n0123456789abcdef\n\r\n"
    assert encode({"text": "a\nb"}) == b'{"text":"a\\nb"}'
