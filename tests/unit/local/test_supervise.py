"""What the supervisor counts of a run's time."""

from datetime import timedelta

from towline.local.supervise import WorkingTime


def test_time_at_rest_does_not_count() -> None:
    working = WorkingTime(100.0)
    assert working.at(103.0, waiting=False) == timedelta(seconds=3)
    assert working.at(163.0, waiting=True) == timedelta(seconds=3)
    assert working.at(165.0, waiting=False) == timedelta(seconds=5)
