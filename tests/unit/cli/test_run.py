"""Outcomes become exit codes, and a slow reader becomes nobody's problem."""

import signal
import threading
from typing import Any

import pytest

from tests.unit.cli.events import STORY, event
from towline.cli.run import exit_code
from towline.cli.threaded import Threaded
from towline.local.launcher import Outcome


@pytest.mark.parametrize(
    ("kind", "data", "stopped_by", "code"),
    [
        ("run.completed", {}, None, 0),
        ("run.completed", {}, signal.SIGINT, 0),
        ("run.failed", {"reason": "ModelUnavailable"}, None, 1),
        ("run.failed", {"reason": "SandboxUnavailable"}, None, 3),
        ("run.failed", {"reason": "SealFailed"}, None, 3),
        ("run.cancelled", {"reason": "Interrupted"}, signal.SIGINT, 130),
        ("run.cancelled", {"reason": "Terminated"}, signal.SIGTERM, 143),
        ("run.cancelled", {"reason": "HungUp"}, signal.SIGHUP, 129),
        ("run.cancelled", {"reason": "somebody else"}, None, 1),
    ],
)
def test_the_exit_code_tells_the_outcome(
    kind: str, data: dict[str, Any], stopped_by: signal.Signals | None, code: int
) -> None:
    assert exit_code(Outcome(event(1, kind, data)), stopped_by) == code


class Recorder:
    """A viewer that shows nothing before it is let go."""

    wants_deltas = False

    def __init__(self, fault: OSError | None = None) -> None:
        self.shown: list[Any] = []
        self.go = threading.Event()
        self._fault = fault

    def event(self, event: Any) -> None:
        self.go.wait(10)
        if self._fault is not None:
            raise self._fault
        self.shown.append(event)

    delta = note = event


def test_a_reader_that_takes_its_time_holds_nobody_up_and_gets_everything_in_order() -> None:
    recorder = Recorder()
    viewer = Threaded(recorder)
    for each in STORY:
        viewer.event(each)
    viewer.note("done")
    assert recorder.shown == []
    recorder.go.set()
    assert viewer.close(10)
    assert recorder.shown == [*STORY, "done"]


def test_a_reader_that_never_reads_is_given_up() -> None:
    viewer = Threaded(Recorder())
    viewer.event(STORY[0])
    assert not viewer.close(0.01)


def test_a_reader_that_went_away_is_told_at_the_next_event() -> None:
    recorder = Recorder(BrokenPipeError())
    viewer = Threaded(recorder)
    recorder.go.set()
    viewer.event(STORY[0])
    viewer.close(10)
    with pytest.raises(BrokenPipeError):
        viewer.event(STORY[1])
