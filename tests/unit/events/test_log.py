"""The state of a run from the fields of its meta."""

from towline.events.log import RunState, state_of
from towline.events.totals import Totals


def test_a_run_without_meta_is_absent():
    state = state_of([None] * 19)

    assert state == RunState()
    assert state.absent


def test_a_running_run_is_told_by_its_fields():
    values = [b"3", b"42", b"2", b"40", None, b"asked", b"sandbox", b"hello", b"4"]
    values += [
        b"2026-01-01T00:00:00.000Z",
        b"30",
        b"41",
        b"Running",
        b"38 42",
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
        b"6",
        b"3",
    ]

    assert state_of(values) == RunState(
        epoch=3,
        head=42,
        incarnation=2,
        lost_head=40,
        closed=None,
        cancel="asked",
        want="sandbox",
        name="hello",
        inbox_head=4,
        waiting="2026-01-01T00:00:00.000Z",
        compacted=30,
        progress=41,
        phase="Running",
        unfed=(38, 42),
        totals=Totals(1, 2, 3, 4, 5, 6, 3),
    )
    assert state_of(values).unread == 1


def test_a_cancellation_without_a_reason_is_still_one():
    assert state_of([b"1", b"1", None, None, None, b"", *[None] * 15]).cancel == ""
