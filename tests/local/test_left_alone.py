"""What those who read a run or speak to it are told when its launcher is killed, or its store is away."""

import os
import signal
from pathlib import Path

import pytest

from tests.local.command import Finished, Running, Towline, agent_run, says, script, template

INTERRUPTED = "towline: interrupted: nobody works on the run demo ("


def talks(towline: Towline, *answers: str, words: int = 0, **spec: object) -> Path:
    """A run that waits for prompts; `words` makes its second answer a long one, of 50 words a second."""
    steps = [says("One."), says("word " * words, chunkMilliseconds=20) if words else says("Two."), *map(says, answers)]
    return towline.write("run.yaml", agent_run(interactive=True, **spec), template(), script(*steps))


def waiting(towline: Towline, *options: str, words: int = 0) -> Running:
    """One that waits for its first prompt."""
    running = towline.start("run", talks(towline, words=words), "--json", *options)
    running.until("turn.waiting")
    return running


def killed(running: Running) -> Finished:
    running.signal(signal.SIGKILL)
    return running.finish()


def assert_told_by_us(finished: Finished) -> None:
    assert all(line.startswith("towline: ") for line in finished.err.splitlines()), finished.err


def test_a_follower_of_a_killed_launcher_shows_what_there_is_says_so_and_makes_way(towline: Towline) -> None:
    running = waiting(towline, "--keep")
    follower = towline.start("tail", "demo", "-f", "--json")
    follower.until("turn.waiting")

    left = killed(running)

    finished = follower.finish()
    assert (finished.code, finished.out) == (1, left.out)
    assert INTERRUPTED in finished.err
    assert "spec.continueFrom" in finished.err
    assert "towline cancel" in finished.err
    assert_told_by_us(finished)
    again = towline.write(
        "next.yaml", agent_run("next", continueFrom={"name": "demo"}), template(), script(says("On."))
    )
    assert towline("run", again, "--keep").code == 0


def test_an_interrupted_run_is_shown_and_not_waited_for(towline: Towline) -> None:
    left = killed(waiting(towline, "--keep"))

    following = towline("tail", "demo", "-f", "--json")
    looking = towline("tail", "demo", "--json")

    assert (following.code, following.out) == (1, left.out)
    assert following.err.startswith(INTERRUPTED)
    assert (looking.code, looking.out, looking.err) == (0, left.out, "")


def test_who_waits_for_an_answer_of_a_killed_launcher_is_told_how_to_go_on(towline: Towline) -> None:
    running = waiting(towline, "--keep", words=3000)
    prompting = towline.start("prompt", "demo", "Well?", "--wait")
    running.until("user.message")

    killed(running)

    finished = prompting.finish()
    assert (finished.code, finished.out) == (2, b"")
    assert finished.err.startswith("towline: nobody works on the run demo (")
    assert "spec.continueFrom" in finished.err
    assert_told_by_us(finished)


def test_who_waits_for_an_answer_of_a_killed_launcher_that_kept_nothing_is_told_that_it_is_gone(
    towline: Towline,
) -> None:
    running = waiting(towline, words=3000)
    prompting = towline.start("prompt", "demo", "Well?", "--wait")
    following = towline.start("tail", "demo", "-f", "--json")
    running.until("user.message")
    following.until("user.message")

    killed(running)

    for each in (prompting, following):
        finished = each.finish()
        assert finished.code == 3
        assert finished.err == "towline: the launcher of the run has ended, and its store with it\n"


def test_a_killed_store_puts_no_line_of_the_library_before_a_person(towline: Towline) -> None:
    running = waiting(towline)
    follower = towline.start("tail", "demo", "-f", "--json")
    follower.until("turn.waiting")

    os.kill(towline.process("valkey-server"), signal.SIGKILL)
    towline.process("valkey-server")  # the launcher has started another
    towline_prompted(towline)
    for each in (running, follower):
        each.until("turn.waiting")
    assert towline("cancel", "demo").code == 0

    shown, followed = running.finish(), follower.finish()
    assert_told_by_us(shown)
    assert_told_by_us(followed)
    assert shown.out == followed.out


def test_a_launcher_whose_store_is_slow_to_come_back_is_not_said_to_have_ended(towline: Towline) -> None:
    running = waiting(towline)
    follower = towline.start("tail", "demo", "-f", "--json")
    follower.until("turn.waiting")

    with towline.held("towline.cli run"):
        os.kill(towline.process("valkey-server"), signal.SIGKILL)
        lost = towline("tail", "demo", "-f")
        assert (lost.code, lost.out) == (3, b"")
        assert "the store of a run at work here does not answer" in lost.err
    towline_prompted(towline)

    for each in (running, follower):
        each.until("turn.waiting")
    assert towline("cancel", "demo").code == 0
    assert running.finish().out == follower.finish().out


def towline_prompted(towline: Towline) -> None:
    while towline("prompt", "demo", "Well?", "--key", "k").code != 0:
        pass


@pytest.mark.parametrize("seconds", ["0.001", "1"])
def test_a_prompt_that_did_not_arrive_in_time_is_not_said_to_be_there(towline: Towline, seconds: str) -> None:
    running = waiting(towline)

    with towline.held("valkey-server"):
        prompted = towline("prompt", "demo", "Well?", "--wait", "--timeout", seconds, "--key", "it's mine")

    assert prompted.code == 124
    assert prompted.err == (
        f"towline: no answer within {seconds} s; the prompt may not have arrived: again, with --key "
        "'it'\"'\"'s mine', is harmless\n"
    )
    again = towline("prompt", "demo", "Well?", "--wait", "--key", "it's mine")
    assert (again.code, again.out) == (0, b"Two.\n")
    running.signal(signal.SIGINT)
    assert len(running.finish().each("user.message")) == 2


def test_a_prompt_that_is_in_the_inbox_is_said_to_be_there(towline: Towline) -> None:
    running = waiting(towline)

    with towline.held():
        prompted = towline("prompt", "demo", "Well?", "--wait", "--timeout", "3")

    assert (prompted.code, prompted.err) == (124, "towline: no answer within 3 s; the prompt stays in the inbox\n")
    running.signal(signal.SIGINT)
    running.finish()
