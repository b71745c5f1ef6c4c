"""A result is one bounded line, whatever text it carries."""

import json

from towline.toolserver.result import LINE_LIMIT, Result, ToolFault, done


def test_the_line_has_the_fields_of_the_protocol_in_order() -> None:
    line = Result("ok", "hi\n", 3, exit_code=0, duration_ms=5).line()
    assert line == (
        b'{"type":"result","outcome":"ok","text":"hi\\n","total_bytes":3,"truncated":false,"exit_code":0,'
        b'"signal":null,"timed_out":false,"duration_ms":5,"killed":0,"code":null}'
    )


def test_a_text_of_nothing_but_control_characters_still_fits_into_a_line() -> None:
    line = Result("ok", "\x1b" * 40_000, 40_000).line()
    assert len(line) <= LINE_LIMIT
    result = json.loads(line)
    assert result["truncated"]
    assert "more bytes omitted" in result["text"]


def test_a_long_text_of_wide_characters_is_left_alone() -> None:
    line = Result("ok", "\ufffd" * 40_000, 40_000).line()
    assert len(line) <= LINE_LIMIT
    assert not json.loads(line)["truncated"]


def test_a_fault_becomes_an_error_for_the_model() -> None:
    result = ToolFault("NotFound", "a\0b does not exist").result()
    assert (result.outcome, result.code, result.text) == ("error", "NotFound", "a\ufffdb does not exist")


def test_a_long_report_loses_its_middle() -> None:
    result = done("x" * 50_000)
    assert result.truncated
    assert result.total_bytes == 50_000
    assert len(result.text) <= 40_000
