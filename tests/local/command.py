"""The `towline` command as a person runs it, and manifests for it: real processes, folders of its own.

Used by the tests of this folder through the fixture `towline`.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.processes import die_with_the_test

SOON_SECONDS = 30.0


@dataclass
class Finished:
    """What a command said and how it ended."""

    code: int
    out: bytes
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def only(self, kind: str) -> dict[str, Any]:
        """The data of the one event of a kind."""
        (found,) = (event["data"] for event in self.events if event["type"] == kind)
        assert isinstance(found, dict)
        return found

    def each(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]


@dataclass
class Running:
    """A `towline run --json` whose events are read as they come."""

    process: "subprocess.Popen[bytes]"
    seen: list[bytes] = field(default_factory=list)

    def until(self, kind: str, nth: int = 1) -> dict[str, Any]:
        """Reads on until the nth event of a kind, and returns it. The suite's timeout is the bound."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            event: dict[str, Any] = json.loads(line)
            if event["type"] == kind:
                nth -= 1
                if nth == 0:
                    return event
        raise AssertionError(f"no {kind}: {self.seen[-3:]} {self.finish().err}")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def finish(self) -> Finished:
        """Waits for the end."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.seen += self.process.stdout.readlines()
        error = self.process.stderr.read().decode()
        code = self.process.wait(SOON_SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()
        return Finished(code, b"".join(self.seen), error)


@dataclass
class AtTerminal:
    """A command with a terminal of its own: what it shows is read as it comes, and one can type."""

    process: "subprocess.Popen[bytes]"
    ours: int
    text: str = ""

    def until(self, words: str) -> str:
        """Reads on until `words` were shown; what came since the last `until`, them included."""
        deadline = time.monotonic() + SOON_SECONDS
        while words not in self.text:
            assert time.monotonic() < deadline, f"no {words!r}: {self.text}"
            self._read(deadline)
        before, self.text = self.text[: (end := self.text.index(words) + len(words))], self.text[end:]
        return before

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def finish(self) -> tuple[int, str]:
        """The exit code, and what was left to show."""
        deadline = time.monotonic() + SOON_SECONDS
        while self._read(deadline):
            assert time.monotonic() < deadline, f"it did not end: {self.text}"
        os.close(self.ours)
        return self.process.wait(SOON_SECONDS), self.text

    def _read(self, deadline: float) -> bool:
        """False at the end."""
        if not select.select([self.ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return True
        try:
            piece = os.read(self.ours, 65_536)
        except OSError:  # Linux says so when the last writer has closed
            return False
        self.text += piece.decode().replace("\r\n", "\n")
        return bool(piece)


@dataclass
class Towline:
    """The command, with its own folders."""

    home: Path
    cache: Path
    others: frozenset[int]
    temporary: Path = Path("/tmp")
    """Where launchers make their runtime folders: other launchers of this machine are not seen."""
    wrapper: tuple[str, ...] = ()
    """A program that starts it, to change its surroundings."""
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.home / "towline"

    def start(self, *words: str | Path, stdin: bytes = b"", **environment: str) -> Running:
        process = subprocess.Popen(
            [*self.wrapper, sys.executable, "-m", "towline.cli", *map(str, words)],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            env=self._environment(environment),
            start_new_session=True,
            preexec_fn=die_with_the_test,
        )
        self.started.append(process)
        if process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        return Running(process)

    def at_terminal(self, *words: str | Path) -> AtTerminal:
        """The command at a terminal of its own, without colours."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            # setsid makes the terminal the command's own, so that a typed Ctrl-C is a signal for it.
            ["setsid", "--ctty", "--wait", sys.executable, "-m", "towline.cli", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.home,
            env=self._environment({"LC_ALL": "C.UTF-8", "NO_COLOR": "1"}),
            preexec_fn=die_with_the_test,
        )
        os.close(theirs)
        self.started.append(process)
        return AtTerminal(process, ours)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.cache),
            "TMPDIR": str(self.temporary),
            **more,
        }

    def __call__(self, *words: str | Path, stdin: bytes = b"", **environment: str) -> Finished:
        """Runs the command to its end."""
        return self.start(*words, stdin=stdin, **environment).finish()

    def write(self, name: str, *documents: dict[str, Any]) -> Path:
        """A manifest file."""
        path = self.home / name
        path.write_text(yaml.safe_dump_all(documents))
        return path

    def descendants(self) -> dict[int, str]:
        """The processes that belong to launchers started here, by pid, with their command lines."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    status = (entry / "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                state, parent = status.rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
        found: dict[int, str] = {}
        for pid in parents:
            above = pid
            while above in parents and above != os.getpid() and above not in self.others:
                above = parents[above]
            if above == os.getpid() and pid != os.getpid():
                try:
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                except (FileNotFoundError, ProcessLookupError):
                    continue
        return found

    def process(self, pattern: str) -> int:
        """Pid of the one process whose command line matches `pattern`, once there is one."""
        found = eventually(lambda: [pid for pid, line in self.descendants().items() if re.search(pattern, line)])
        assert len(found) == 1, self.descendants()
        return found[0]

    @contextmanager
    def held(self, pattern: str = "towline.harness") -> Iterator[None]:
        """Stops that one process meanwhile: however long the block takes, the run is where it was."""
        pid = self.process(pattern)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def assert_nothing_is_left(self, within_seconds: float = 3.0) -> None:
        deadline = time.monotonic() + within_seconds
        while left := self.descendants():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.02)


def eventually(look: Callable[[], Any], within_seconds: float = SOON_SECONDS) -> Any:
    """What `look` returns, once it is true."""
    deadline = time.monotonic() + within_seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def agent_run(name: str = "demo", prompt: str = "Do it.", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "towline.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": name},
        "spec": {"prompt": prompt, "templateRef": {"name": "scripted"}, **spec},
    }


def template(provider: str = "script", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "towline.dev/v1alpha1",
        "kind": "AgentTemplate",
        "metadata": {"name": "scripted"},
        "spec": {"model": {"provider": provider}, **spec},
    }


def script(*steps: dict[str, Any]) -> dict[str, Any]:
    """A provider that answers with `steps`."""
    return {
        "apiVersion": "towline.dev/v1alpha1",
        "kind": "ModelProvider",
        "metadata": {"name": "script"},
        "spec": {"api": "Scripted", "scripted": {"steps": list(steps)}},
    }


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, **more}


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": arguments}]}
