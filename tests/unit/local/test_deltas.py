"""Deltas are shown only while what they belong to is open."""

from tests.unit.cli.events import event
from towline.local.watch import Deltas


def text(message_id: str, piece: str) -> dict[str, str]:
    return {"kind": "text", "message_id": message_id, "text": piece}


def test_a_delta_waits_for_the_start_of_its_message() -> None:
    deltas = Deltas()
    assert deltas.admit([text("m1", "a")]) == []
    deltas.saw(event(1, "agent.message_start", {"message_id": "m1"}))
    assert deltas.admit([text("m1", "b")]) == [text("m1", "a"), text("m1", "b")]


def test_a_delta_after_the_end_of_its_message_is_dropped() -> None:
    deltas = Deltas()
    for kind in ("agent.message", "agent.message_aborted"):
        deltas.saw(event(1, "agent.message_start", {"message_id": kind}))
        deltas.saw(event(2, kind, {"message_id": kind}))
        assert deltas.admit([text(kind, "late")]) == []
    deltas.saw(event(3, "agent.message_start", {"message_id": "m2"}))
    assert deltas.admit([]) == [], "nothing was held back"


def test_a_message_that_ended_before_its_deltas_came_shows_none_of_them() -> None:
    deltas = Deltas()
    assert deltas.admit([text("m1", "a")]) == []
    deltas.saw(event(1, "agent.message_start", {"message_id": "m1"}))
    deltas.saw(event(2, "agent.message", {"message_id": "m1"}))
    assert deltas.admit([]) == []


def test_output_belongs_to_its_call() -> None:
    deltas = Deltas()
    output = {"kind": "tool_output", "call_id": "c1", "text": "x"}
    assert deltas.admit([output]) == []
    deltas.saw(event(1, "agent.tool_use", {"call_id": "c1"}))
    assert deltas.admit([]) == [output]
    deltas.saw(event(2, "agent.tool_result", {"call_id": "c1"}))
    assert deltas.admit([output]) == []
