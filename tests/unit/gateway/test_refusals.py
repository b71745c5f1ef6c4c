import pytest

from towline.errors import CallMismatch, Fenced, Invalid, LogClosed, RunCancelled, StoreUnavailable
from towline.gateway.bound_run import UnknownRun
from towline.gateway.limits import Busy
from towline.gateway.refusals import refusal


@pytest.mark.parametrize(
    ("fault", "status", "reason", "retry_after"),
    [
        (Fenced(1, 2), 200, "Fenced", None),
        (LogClosed("run.completed"), 200, "LogClosed", None),
        (RunCancelled("enough"), 200, "Cancelled", None),
        (CallMismatch("tc_1"), 200, "CallMismatch", None),
        (UnknownRun("no run"), 200, "UnknownRun", None),
        (StoreUnavailable("redis://secret"), 503, "StoreUnavailable", 1),
        (Busy("full", run=True), 429, "Busy", 1),
        (Busy("full", run=False), 503, "Busy", 1),
    ],
)
def test_each_refusal_has_its_reason_and_its_status(fault, status, reason, retry_after):
    refused = refusal(fault)

    assert refused is not None
    assert (refused.code, refused.status, refused.retry_after) == (-32040, status, retry_after)
    assert refused.error()["data"] == {"reason": reason}


def test_an_invalid_parameter_is_told_in_the_words_of_the_fault():
    refused = refusal(Invalid("params.name: expected the name of a tool"))

    assert refused is not None
    assert (refused.code, refused.status) == (-32602, 400)
    assert refused.error() == {"code": -32602, "message": "params.name: expected the name of a tool"}


def test_where_the_store_is_stays_between_us():
    refused = refusal(StoreUnavailable("event store redis://10.0.0.7: refused"))

    assert refused is not None
    assert "10.0.0.7" not in refused.message


def test_our_own_mistakes_have_no_words_for_the_caller():
    assert refusal(KeyError("x")) is None
