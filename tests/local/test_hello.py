"""A run without tools: the whole of it, and nothing of a sandbox; then read again from the kept store."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.local.command import Finished, Towline, agent_run, says, script, template

EXAMPLES = Path(__file__).parents[2] / "examples"
HELLO = EXAMPLES / "01-hello.yaml"


def talks(towline: Towline, words: int = 3000, **spec: Any) -> Path:
    """A run whose model takes its time: 50 words a second."""
    step = says("word " * words, chunkMilliseconds=20)
    return towline.write("run.yaml", agent_run(**spec), template(), script(step))


@dataclass(frozen=True)
class Kept:
    """The first example, kept, for tests that only read it."""

    towline: Towline
    finished: Finished

    @property
    def uid(self) -> str:
        return str(self.finished.events[0]["run"]["uid"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, bundle_cache: Path) -> Iterator[Kept]:
    with tempfile.TemporaryDirectory(prefix="tt-") as temporary:
        towline = Towline(tmp_path_factory.mktemp("kept"), bundle_cache, frozenset(), Path(temporary))
        finished = towline("run", HELLO, "--json", "--keep")
        assert finished.code == 0, finished.err
        yield Kept(towline, finished)


def test_hello_answers_without_a_sandbox(towline: Towline, tmp_path: Path) -> None:
    towline.cache = tmp_path / "own-cache"
    finished = towline("run", HELLO, "--json")
    assert finished.code == 0, finished.err
    assert [event["seq"] for event in finished.events] == list(range(1, len(finished.events) + 1))
    assert not [kind for kind in finished.types if kind.startswith("sandbox.")]
    assert "harness.sealed" in finished.types
    assert finished.types[0] == "run.started"
    assert finished.types[-1] == "run.completed"
    assert len([kind for kind in finished.types if kind in ("run.completed", "run.failed", "run.cancelled")]) == 1
    assert finished.err == ""
    assert not towline.cache.joinpath("towline").exists(), "no bundle was built"
    assert not towline.store.exists(), "nothing was kept"


def test_plain_output_is_one_line_an_event(towline: Towline) -> None:
    finished = towline("run", HELLO)
    lines = finished.out.decode().splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(1, len(lines) + 1)]
    assert b"\x1b" not in finished.out
    assert "run.completed" in lines[-1]


def test_a_kept_run_is_replayed_byte_for_byte_from_any_event(kept: Kept) -> None:
    lines = kept.finished.out.splitlines(keepends=True)
    for first in (1, 5, len(lines), len(lines) + 1):
        tail = kept.towline("tail", "hello", "--json", "--from", str(first))
        assert (tail.code, tail.out) == (0, b"".join(lines[first - 1 :])), tail.err


def test_following_a_finished_run_ends(kept: Kept) -> None:
    assert kept.towline("tail", "hello", "--json", "-f").out == kept.finished.out


def test_a_run_is_found_by_name_uid_and_the_beginning_of_it(kept: Kept) -> None:
    for word in ("hello", kept.uid, kept.uid[:8]):
        assert kept.towline("tail", word, "--json").out == kept.finished.out
    missing = kept.towline("tail", "hallo")
    assert (missing.code, missing.err) == (2, "towline: no run 'hallo' here; did you mean 'hello'?\n")


def test_ls_shows_what_is_kept(kept: Kept) -> None:
    listed = json.loads(kept.towline("ls", "--json").out)
    assert (listed["name"], listed["uid"]) == ("hello", kept.uid)
    assert (listed["phase"], listed["turns"], listed["tool_calls"]) == ("Succeeded", 1, 0)
    assert listed["events"] == len(kept.finished.events)
    table = kept.towline("ls").out.decode().splitlines()
    assert table[0].split() == ["NAME", "UID", "PHASE", "TURNS", "CALLS", "TOKENS", "AGE"]
    assert re.match(rf"hello\s+{kept.uid}\s+Succeeded\s+1\s+0\s+\d+\s+\d+[sm]$", table[1])


def test_the_latest_run_of_a_name_is_meant(towline: Towline) -> None:
    path = towline.write("run.yaml", agent_run(), template(), script(says("Hello.")))
    for _ in range(2):
        latest = towline("run", path, "--json", "--keep")
    assert towline("tail", "demo", "--json").out == latest.out
    assert len(towline("ls").out.splitlines()) == 3


def test_a_store_can_be_chosen(towline: Towline) -> None:
    finished = towline("run", HELLO, "--json", "--store", towline.home / "mine")
    assert towline("tail", "hello", "--json", "--store", towline.home / "mine").out == finished.out
    assert not towline.store.exists()
    uid = finished.events[0]["run"]["uid"]
    assert f"towline: kept: `towline tail --store {towline.home}/mine {uid}`" in finished.err


def test_a_terminal_gets_streamed_text_and_colours_unless_asked_not_to(towline: Towline) -> None:
    for no_color in ("", "1"):
        text = _on_a_terminal(towline, "run", HELLO, NO_COLOR=no_color)
        assert "and the tug goes on.\r\n" in text
        assert text.count("and the tug goes on.") == 1
        assert "✓ succeeded" in text
        assert ("\x1b[32m" in text) is (no_color == "")


def _on_a_terminal(towline: Towline, *words: str | Path, **environment: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "towline.cli", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={"XDG_CACHE_HOME": str(towline.cache), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **environment},
    )
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # Linux says so when the last writer has closed
        pass
    os.close(ours)
    assert process.wait(30) == 0
    return text.decode()


def test_a_reader_that_goes_away_ends_the_run_quietly(towline: Towline) -> None:
    running = towline.start("run", talks(towline), "--json", "--keep")
    running.until("run.started")
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.process.wait(30) == 141
    assert running.process.stderr is not None
    assert b"Traceback" not in running.process.stderr.read()
    towline.assert_nothing_is_left()
    assert json.loads(towline("ls", "--json").out)["phase"] == "Cancelled"


def test_a_store_in_use_is_read_while_the_run_goes_on_and_refused_to_a_second_run(towline: Towline) -> None:
    running = towline.start("run", talks(towline, words=150), "--json", "--keep")
    running.until("agent.message_start")

    with towline.held():
        second = towline("run", HELLO, "--keep")
        assert second.code == 3
        assert f"is in use by `towline run` (pid {running.process.pid})" in second.err
        assert json.loads(towline("ls", "--json").out)["phase"] == "Running"
        follower = towline.start("tail", "demo", "--json", "-f")
        follower.until("agent.message_start")

    finished = running.finish()
    assert finished.code == 0, finished.err
    assert follower.finish().out == finished.out


def test_a_launcher_killed_with_9_leaves_nothing_and_its_run_is_shown_as_interrupted(towline: Towline) -> None:
    running = towline.start("run", talks(towline), "--json", "--keep")
    running.until("agent.message_start")
    running.signal(signal.SIGKILL)
    running.finish()
    towline.assert_nothing_is_left(within_seconds=3)
    assert json.loads(towline("ls", "--json").out)["phase"] == "Interrupted"


def test_the_environment_of_gateway_and_harness_is_ours_alone(towline: Towline) -> None:
    running = towline.start(
        "run",
        talks(towline),
        "--json",
        SECRET_OF_THE_USER="s3cr3t",
        AWS_SECRET_ACCESS_KEY="s3cr3t",
    )
    running.until("agent.message_start")
    for module in ("towline.gateway", "towline.harness"):
        environ = Path(f"/proc/{towline.process(module)}/environ").read_bytes()
        assert b"s3cr3t" not in environ
        names = {entry.partition(b"=")[0].decode() for entry in environ.split(b"\0") if entry}
        assert {name for name in names if not name.startswith("TOWLINE_")} == {"PATH", "LC_ALL"}
    running.signal(signal.SIGINT)
    assert running.finish().code == 130


def test_a_second_ctrl_c_kills_at_once_and_leaves_nothing(towline: Towline) -> None:
    running = towline.start("run", talks(towline), "--json", "--keep")
    running.until("agent.message_start")
    os.kill(towline.process("towline.harness"), signal.SIGSTOP)  # it cannot be polite
    running.signal(signal.SIGINT)
    running.signal(signal.SIGINT)
    finished = running.finish()
    assert finished.code == 130
    assert finished.types[-1] == "run.cancelled"
    towline.assert_nothing_is_left()


def test_sigterm_cancels_too(towline: Towline) -> None:
    running = towline.start("run", talks(towline), "--json")
    running.until("agent.message_start")
    running.signal(signal.SIGTERM)
    finished = running.finish()
    assert finished.code == 143
    assert finished.only("run.cancelled") == {"reason": "Terminated"}


def test_a_harness_that_does_not_listen_is_killed_after_its_grace(towline: Towline) -> None:
    running = towline.start("run", talks(towline), "--json")
    running.until("agent.message_start")
    os.kill(towline.process("towline.harness"), signal.SIGSTOP)
    running.signal(signal.SIGINT)
    finished = running.finish()
    assert finished.code == 130
    assert finished.types[-1] == "run.cancelled"


def test_a_run_beyond_its_deadline_fails(towline: Towline) -> None:
    finished = towline("run", talks(towline, activeDeadlineSeconds=1), "--json")
    assert finished.code == 1
    assert finished.only("run.failed")["reason"] == "DeadlineExceeded"
    assert "DeadlineExceeded" in finished.err
