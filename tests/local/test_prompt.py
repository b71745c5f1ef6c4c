"""`towline prompt` and `towline cancel`: a second process speaks to a run, kept or not, and is told its mistakes."""

import json
import signal
from pathlib import Path

import pytest

from tests.local.command import Running, Towline, agent_run, says, script, template


def talks(towline: Towline, *answers: str, words: int) -> Path:
    """A run whose first answer takes its time (50 words a second), and whose others are given."""
    first = says("word " * words, chunkMilliseconds=20)
    return towline.write("run.yaml", agent_run(), template(), script(first, *map(says, answers)))


def at_work(towline: Towline, *options: str, words: int = 150) -> Running:
    """A run in the middle of an answer; `towline.held()` keeps it there."""
    running = towline.start("run", talks(towline, "Second answer.", words=words), "--json", *options)
    running.until("agent.message_start")
    return running


@pytest.mark.parametrize("options", [(), ("--keep",)])
def test_a_prompt_reaches_a_run_at_work_whether_it_is_kept_or_not(towline: Towline, options: tuple[str, ...]) -> None:
    running = at_work(towline, *options)

    with towline.held():
        prompted = towline("prompt", "demo", "And then?")

    assert (prompted.code, prompted.out, prompted.err) == (0, b"prompt 1 is in the inbox of demo\n", "")
    finished = running.finish()
    assert [each["content"] for each in finished.each("user.message")] == ["Do it.", "And then?"]
    assert finished.only("run.completed")["result"]["text"] == "Second answer."


def test_a_long_prompt_is_read_from_stdin(towline: Towline) -> None:
    running = at_work(towline)
    long = "ä" * 60_000

    with towline.held():
        prompted = towline("prompt", "demo", "-", stdin=long.encode())

    assert prompted.code == 0, prompted.err
    assert running.finish().each("user.message")[1]["content"] == long


def test_the_same_key_is_the_same_prompt(towline: Towline) -> None:
    running = at_work(towline)

    with towline.held():
        said = [towline("prompt", "demo", "Once.", "--key", "k").out for _ in range(2)]

    assert said == [b"prompt 1 is in the inbox of demo\n"] * 2
    assert len(running.finish().each("user.message")) == 2


def test_what_is_wrong_with_a_prompt_is_said(towline: Towline) -> None:
    running = at_work(towline, words=3000)

    near = towline("prompt", "dem", "x")
    assert (near.code, near.err) == (2, "towline: no run 'dem' here; did you mean 'demo'?\n")
    empty = towline("prompt", "demo", " ")
    assert (empty.code, empty.err) == (2, "towline: the prompt is empty; expected some words\n")
    large = towline("prompt", "demo", "-", stdin=b"x" * 10_000_000)
    assert (large.code, large.err) == (2, "towline: prompt: 10000000 bytes; expected at most 262144\n")
    both = towline("prompt", "demo", "x", "--steer", "--interrupt")
    assert both.code == 2
    assert "not allowed with" in both.err
    running.signal(signal.SIGINT)
    running.finish()


def test_a_prompt_for_a_run_that_has_ended_is_refused(towline: Towline) -> None:
    assert towline("run", talks(towline, words=2), "--json", "--keep").code == 0

    prompted = towline("prompt", "demo", "Too late.")

    assert prompted.code == 1
    ended, hint = prompted.err.splitlines()
    assert ended.startswith("towline: the run demo (")
    assert ended.endswith("has ended: run.completed")
    assert "spec.continueFrom" in hint


def test_a_run_at_work_is_meant_before_an_older_one_that_has_ended(towline: Towline) -> None:
    running = at_work(towline)
    with towline.held():
        assert towline("run", talks(towline, words=2), "--json", "--keep").code == 0, "a newer one, which has ended"

        assert towline("prompt", "demo", "You.").code == 0

    assert len(running.finish().each("user.message")) == 2


def test_a_prompt_that_nobody_would_read_is_refused(towline: Towline) -> None:
    running = at_work(towline, "--keep", words=3000)
    running.signal(signal.SIGKILL)
    running.finish()

    prompted = towline("prompt", "demo", "Anybody?")

    assert prompted.code == 2
    assert "nobody works on the run demo (" in prompted.err
    assert "spec.continueFrom" in prompted.err


def test_cancel_ends_a_run_with_the_reason_that_was_given(towline: Towline) -> None:
    running = at_work(towline, words=3000)

    cancelled = towline("cancel", "demo", "--reason", "Not needed any more.")

    assert (cancelled.code, cancelled.out) == (0, b"cancelling demo\n")
    finished = running.finish()
    assert finished.code == 1
    assert finished.only("run.cancelled") == {"reason": "Not needed any more."}


def test_cancel_ends_a_run_that_nobody_works_on(towline: Towline) -> None:
    running = at_work(towline, "--keep", words=3000)
    running.signal(signal.SIGKILL)
    running.finish()

    assert towline("cancel", "demo").code == 0

    assert json.loads(towline("ls", "--json").out)["phase"] == "Cancelled"
    again = towline("cancel", "demo")
    assert again.code == 1
    assert "has ended: run.cancelled" in again.err


def test_a_run_that_keeps_nothing_is_listed_and_followed_to_its_last_event_while_it_works(towline: Towline) -> None:
    running = at_work(towline)
    with towline.held():
        assert json.loads(towline("ls", "--json").out)["phase"] == "Running"
        followers = [towline.start("tail", "demo", "--json", "-f") for _ in range(2)]
        for each in followers:
            each.until("agent.message_start")

    finished = running.finish()

    assert [each.finish().out for each in followers] == [finished.out] * 2
    assert b"none is kept" in towline("ls").err.encode()
