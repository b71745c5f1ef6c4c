"""Which kept run a person means."""

import pytest

from towline.errors import Invalid
from towline.events.event import RunRef
from towline.events.log import RunState
from towline.local.index import Kept, find
from towline.naming import RunKeys, run_of_meta_key


def kept(uid: str, name: str) -> Kept:
    return Kept(RunRef("default", uid, name), RunState(), None, None)


RUNS = [kept("aaaa1111", "hello"), kept("aaaa2222", "fix"), kept("bbbb3333", "hello"), kept("cccc4444", "aaaa2")]


@pytest.mark.parametrize(
    ("wanted", "uid"),
    [("fix", "aaaa2222"), ("hello", "bbbb3333"), ("bbbb", "bbbb3333"), ("aaaa1111", "aaaa1111"), ("aaaa2", "cccc4444")],
)
def test_a_run_is_found_by_name_then_by_the_beginning_of_its_uid(wanted: str, uid: str) -> None:
    assert find(RUNS, wanted).run.uid == uid


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("aaaa", "'aaaa' is the beginning of several runs: aaaa1111, aaaa2222"),
        ("bbb", "no run 'bbb' here; there are: aaaa2, hello, fix"),
        ("nobody", "no run 'nobody' here; there are: aaaa2, hello, fix"),
        ("hallo", "no run 'hallo' here; did you mean 'hello'?"),
    ],
)
def test_what_cannot_be_found_is_explained(wanted: str, sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        find(RUNS, wanted)
    assert str(refused.value) == sentence


def test_an_empty_store_is_named() -> None:
    with pytest.raises(Invalid, match="there is none"):
        find([], "x")


def test_a_meta_key_is_read_back_and_no_other_key_is() -> None:
    keys = RunKeys("team-a", "u-1")
    assert run_of_meta_key(keys.meta) == ("team-a", "u-1")
    for other in (keys.log, keys.blob("ev_1"), "tl:x:meta", "tl:a:{b}:{c}:meta", "other"):
        assert run_of_meta_key(other) is None
