"""What the errors of redis-py and of our scripts mean, and what may be told of an address."""

import pytest
from redis import exceptions

from towline.errors import CallMismatch, Fenced, Invalid, LogClosed, RunCancelled
from towline.events.store import _understand, public_address


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://ada:s3cret@store.example:6379/0?password=s3cret", "redis://store.example:6379/0"),
        ("rediss://:s3cret@store.example", "rediss://store.example"),
        ("redis+cluster://ada:s3@cret@store.example:7000", "redis+cluster://store.example:7000"),
        ("unix://ada:s3cret@/run/valkey.sock?db=1", "unix:///run/valkey.sock"),
    ],
)
def test_an_address_is_told_without_its_credentials(url, told):
    assert public_address(url) == told


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        ("STALE 5 3", Fenced(3, 5)),
        ("CLOSED run.failed", LogClosed("run.failed")),
        ("CANCELLED a person asked", RunCancelled("a person asked")),
        ("CANCELLED ", RunCancelled("")),
        ("MISMATCH tc_1", CallMismatch("tc_1")),
        ("ORDER 4", Invalid("append out of order: expected n=4")),
        ("UNKNOWN tc_1", Invalid("call tc_1: not in the ledger; expected a claimed call")),
        ("ERR something else", Invalid("event store: ERR something else")),
    ],
)
def test_a_refusal_of_a_script_is_an_error_of_ours(reply, meaning):
    error, passing = _understand(exceptions.ResponseError(reply))

    assert (type(error), vars(error), passing) == (type(meaning), vars(meaning), False)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("refused"),
        exceptions.TimeoutError("no reply"),
        exceptions.BusyLoadingError("loading", status_code="LOADING"),
        exceptions.OutOfMemoryError("command not allowed", status_code="OOM"),
        exceptions.ReadOnlyError("replica", status_code="READONLY"),
        exceptions.ClusterDownError("down", status_code="CLUSTERDOWN"),
        exceptions.MasterDownError("down", status_code="MASTERDOWN"),
        exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
        exceptions.ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"),
        exceptions.SlotNotCoveredError("slot 1"),
        OSError("no route"),
    ],
)
def test_a_store_that_may_come_back_is_waited_for(error):
    assert _understand(error) == (None, True)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AuthenticationError("wrong password", status_code="WRONGPASS"),
        exceptions.NoPermissionError("no", status_code="NOPERM"),
    ],
)
def test_a_store_that_will_not_let_us_in_is_not_waited_for(error):
    assert _understand(error) == (None, False)
