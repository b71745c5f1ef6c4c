"""Drafts, events and the envelope line."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from towline.errors import Invalid
from towline.events.event import MAX_DATA_BYTES, TERMINAL_TYPES, Event, RunRef, draft
from towline.events.types import EVENT_TYPES

NOW = datetime(2026, 11, 29, 17, 18, 27, 123999, tzinfo=UTC)
RUN = RunRef("team-a", "0d9f3e7c-1111-4222-8333-444455556666", "hello")


def event(**changes):
    fields = {
        "seq": 7,
        "id": "ev_0123456789abcdef0123",
        "type": "agent.tool_use",
        "run": RUN,
        "turn": 2,
        "time": "2026-11-29T17:18:27.123Z",
        "src": "gateway",
        "epoch": 3,
        "data": b'{"b":[],"a":1.50}',
    }
    return Event(**{**fields, **changes})


def test_the_envelope_is_this_line():
    assert event().line() == (
        b'{"seq":7,"id":"ev_0123456789abcdef0123","type":"agent.tool_use",'
        b'"run":{"namespace":"team-a","name":"hello","uid":"0d9f3e7c-1111-4222-8333-444455556666"},'
        b'"turn":2,"time":"2026-11-29T17:18:27.123Z","src":"gateway","epoch":3,"data":{"b":[],"a":1.50}}'
    )


def test_an_event_outside_any_turn_has_turn_null():
    assert json.loads(event(turn=None).line())["turn"] is None


def test_a_name_that_needs_escaping_keeps_the_line_valid_json():
    line = event(run=RunRef('we"ird', "u", "näme\n")).line()

    assert json.loads(line)["run"] == {"namespace": 'we"ird', "name": "näme\n", "uid": "u"}
    assert b"\n" not in line


def test_a_payload_is_the_parsed_data():
    assert event().payload == {"b": [], "a": 1.5}


def test_only_the_three_ends_of_a_run_are_terminal():
    assert {name for name in EVENT_TYPES if event(type=name).terminal} == TERMINAL_TYPES


def test_a_draft_is_compact_utf8_with_an_id_and_a_time_of_its_own():
    one = draft("run.status", {"phase": "Rünning", "reason": ""}, now=NOW, turn=1)

    assert re.fullmatch(r"ev_[0-9a-f]{20}", one.id)
    assert one.id != draft("run.status", {}, now=NOW).id
    assert (one.type, one.time, one.turn) == ("run.status", "2026-11-29T17:18:27.123Z", 1)
    assert one.data == '{"phase":"Rünning","reason":""}'.encode()


def test_a_draft_tells_its_time_in_utc():
    east = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))

    assert draft("run.status", {}, now=east).time == "2026-11-29T17:18:27.123Z"


def test_a_draft_keeps_the_id_it_is_given():
    assert draft("run.status", {}, now=NOW, event_id="ev_" + "0" * 20).id == "ev_" + "0" * 20


def test_half_a_character_from_a_model_is_kept_as_its_escape():
    one = draft("run.failed", {"reason": "\ud83d", "message": "ü"}, now=NOW)

    assert one.data.decode() == r'{"reason":"\ud83d","message":"\u00fc"}'
    assert json.loads(one.data) == {"reason": "\ud83d", "message": "ü"}


def test_types_that_are_not_known_yet_may_be_drafted():
    assert draft("approval.requested", {}, now=NOW).type == "approval.requested"


@pytest.mark.parametrize("type", ["", "run", "Run.started", 'run."x"', "run..x", "run.x y"])
def test_a_type_that_would_break_the_envelope_is_refused(type):
    with pytest.raises(Invalid, match="event type"):
        draft(type, {}, now=NOW)


@pytest.mark.parametrize("event_id", ["", "ev_1", "ev_" + "G" * 20, "ev_" + "0" * 21])
def test_an_id_of_another_form_is_refused(event_id):
    with pytest.raises(Invalid, match="event id"):
        draft("run.status", {}, now=NOW, event_id=event_id)


def test_data_that_is_no_json_is_refused():
    with pytest.raises(Invalid, match="plain JSON"):
        draft("run.status", {"ratio": float("nan")}, now=NOW)


def test_data_beyond_the_limit_is_refused():
    with pytest.raises(Invalid, match="expected at most 8388608"):
        draft("run.status", {"text": "x" * MAX_DATA_BYTES}, now=NOW)
