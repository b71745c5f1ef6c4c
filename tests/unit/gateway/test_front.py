import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import encode_header_value

from towline.gateway.front import _mismatch

NAMES = st.text(min_size=1, max_size=20)


@given(NAMES, NAMES)
def test_a_name_header_passes_only_if_it_says_what_the_body_says(header, name):
    headers = {b"mcp-name": encode_header_value(header).encode("latin-1")}
    body = {"method": "tools/call", "params": {"name": name}}

    assert (_mismatch(headers, body) is None) is (header == name)


@given(NAMES, NAMES)
def test_a_method_header_passes_only_if_it_says_what_the_body_says(header, method):
    said = _mismatch({b"mcp-method": header.encode()}, {"method": method})

    assert (said is None) is (header.encode().decode("latin-1") == method)


@pytest.mark.parametrize("name", [None, 5, ["exec"], {}])
@pytest.mark.parametrize("header", [b"exec", b"", b"=?base64?!!?=", b"=?base64?ZXhlYw?="])
def test_a_name_that_is_no_text_matches_no_header(header, name):
    body = {"method": "tools/call", "params": {"name": name}}

    assert _mismatch({b"mcp-name": header}, body) is not None


def test_a_body_without_parameters_has_no_name():
    assert _mismatch({b"mcp-name": b"exec"}, {"method": "tools/call", "params": []}) is not None
    assert _mismatch({}, {"method": "tools/call"}) is None
