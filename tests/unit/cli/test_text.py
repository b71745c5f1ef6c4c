"""Figures and events in words."""

import pytest

from tests.unit.cli.events import event
from towline.cli.text import age, call_text, duration, event_line, money, plural, result_text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0 ms"), (75.4, "75 ms"), (1400, "1.4 s"), (200_000, "3 min 20 s")]
)
def test_a_duration_has_the_unit_that_fits(milliseconds: float, text: str) -> None:
    assert duration(milliseconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (7200, "2h"), (90_000, "1d")]
)
def test_an_age_is_short(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_small_money_is_not_rounded_to_nothing() -> None:
    assert money(1500) == "$0.0015"
    assert money(1_234_567_890) == "$1,234.5679"


def test_one_is_singular() -> None:
    assert [plural(n, "turn") for n in (0, 1, 2000)] == ["0 turns", "1 turn", "2,000 turns"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"command": "ls -l"}, "t  ls -l"),
        ({"path": "a.py", "offset": 3}, 't  a.py {"offset": 3}'),
        ({}, "t"),
        ({"command": {"odd": 1}}, 't  {"command": {"odd": 1}}'),
        (None, "t"),
        ("broken {", "t  broken {"),
        ({"command": "x" * 500}, "t  " + "x" * 99 + "…"),
        ({"command": "two\nlines"}, "t  two lines"),
    ],
)
def test_a_call_fits_on_a_line_and_begins_with_what_matters(arguments: object, text: str) -> None:
    assert call_text("t", arguments) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"outcome": "ok", "exit_code": 0, "duration_ms": 12}, "exit code 0, 12 ms"),
        ({"outcome": "ok", "exit_code": None, "duration_ms": 1}, "ok, 1 ms"),
        ({"outcome": "unknown", "exit_code": None, "duration_ms": 0}, "unknown, 0 ms"),
        ({"outcome": "ok", "truncated": True, "total_bytes": 10**9}, "ok, 0 ms, shortened from 1,000,000,000 bytes"),
    ],
)
def test_a_result_says_how_the_call_ended(data: dict[str, object], text: str) -> None:
    assert result_text(data) == text


def test_an_event_of_an_unknown_type_is_shown_with_its_data_and_an_empty_one_without() -> None:
    assert event_line(event(3, "x.y", {"a": 1})) == '    3  12:00:00.000  x.y                       {"a": 1}'
    assert event_line(event(3, "x.y", {})) == "    3  12:00:00.000  x.y"
