import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.gateway import result
from towline.gateway.result import MAX_EVENT_BYTES, MAX_TEXT_CHARACTERS, Finding, Reply, from_reply


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply("ok", "hello", exit_code=0), "hello"),
        (Reply("ok", "", exit_code=0), "[no output]"),
        (Reply("ok", ""), "[empty]"),
        (Reply("ok", "no such file\n", exit_code=2), "no such file\n[exit code 2]"),
        (Reply("ok", "no newline", exit_code=1), "no newline\n[exit code 1]"),
        (Reply("ok", "", exit_code=1), "[exit code 1]"),
        (Reply("ok", "x", signal=9), "x\n[killed by signal 9]"),
        (Reply("error", "x", timed_out=True, signal=15), "x\n[timed out after 5 s]"),
        (Reply("cancelled", "x", signal=15), "x\n[cancelled]"),
        (Reply("ok", "x", exit_code=0, killed=2), "x\n[2 left-over processes killed]"),
        (
            Reply("ok", "a\n[… 9 bytes omitted …]\nz", 11, truncated=True, exit_code=1),
            "a\n[… 9 bytes omitted …]\nz\n[11 bytes, middle omitted]\n[exit code 1]",
        ),
    ],
)
def test_the_model_reads_the_output_and_what_a_terminal_would_show_around_it(reply, text):
    assert from_reply(reply, timeout_seconds=5).text == text


def test_a_non_zero_exit_code_is_no_error_of_the_call():
    finding = from_reply(Reply("ok", "", exit_code=1), timeout_seconds=5)

    assert finding.data("tc_1", "exec", 3) == {
        "call_id": "tc_1",
        "name": "exec",
        "outcome": "ok",
        "is_error": False,
        "content": [{"type": "text", "text": "[exit code 1]"}],
        "duration_ms": 3,
        "truncated": False,
        "total_bytes": 0,
        "exit_code": 1,
    }


def test_that_a_sandbox_is_a_new_one_comes_before_the_output():
    finding = from_reply(Reply("ok", "x", exit_code=0), timeout_seconds=5, new_sandbox="sandbox-2")

    assert (finding.text, finding.new_sandbox) == (f"{result.RESET_NOTE}\nx", "sandbox-2")


def test_a_long_text_keeps_beginning_end_and_footer_and_says_that_it_was_cut():
    finding = from_reply(
        Reply("ok", "a" * 50_000 + "z" * 50_000, 100_000, exit_code=3), timeout_seconds=5, new_sandbox="s"
    )

    assert len(finding.text) <= MAX_TEXT_CHARACTERS
    assert finding.text.startswith(f"{result.RESET_NOTE}\naaa")
    assert finding.text.endswith("zzz\n[exit code 3]")
    assert "100000 characters, middle omitted" in finding.text
    assert finding.truncated


@given(st.text(max_size=200), st.integers(1, 2000), st.sampled_from(["", "\x00", "é", "漢", "😀", '"\\']))
def test_the_data_of_a_result_always_fits_into_one_event(seed, times, filler):
    finding = Finding("ok", (seed + filler * 20) * times)

    data = finding.data("tc_" + "1" * 37, "n" * 200, 10**9)

    assert len(json.dumps(data, ensure_ascii=False).encode()) <= MAX_EVENT_BYTES
    assert data["truncated"] is (data["content"][0]["text"] != finding.text)


@pytest.mark.parametrize("filler", ["\x01", "漢", "😀"])
def test_a_text_of_wide_characters_is_cut_but_not_to_nothing(filler):
    data = Finding("ok", filler * MAX_TEXT_CHARACTERS).data("tc_1", "exec", 1)

    assert MAX_EVENT_BYTES * 0.9 < len(json.dumps(data, ensure_ascii=False).encode()) <= MAX_EVENT_BYTES


def test_every_finding_without_a_reply_tells_the_model_what_to_make_of_it():
    assert "Available: exec, search." in result.unknown_tool("bash", ["exec", "search"]).text
    assert "Available: none." in result.unknown_tool("bash", []).text
    assert "Do not try again" in result.denied("exec", "default").text
    assert "not executed" in result.not_started("Quota", "no room").text
    assert "may or may not have taken effect" in result.unknown("Lost", "gone").text
    assert "the workspace may have been reset" in result.unknown("Lost", "gone").text
    assert "the workspace is kept" in result.unknown("Lost", "gone", workspace_kept=True).text
    assert result.cancelled(executed=False).text == "[cancelled before it began]"
