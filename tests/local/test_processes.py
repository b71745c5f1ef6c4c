"""Child processes end when they are told to, and tell how they ended."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from towline.local.processes import Child, Exit, start, tail_of


def python(tmp_path: Path, program: str, **environment: str) -> Child:
    return start(
        "child", [sys.executable, "-c", program], environment=environment, log=tmp_path / "log", folder=tmp_path
    )


async def until_it_says(tmp_path: Path, word: str) -> None:
    async with asyncio.timeout(60):
        while word not in tail_of(tmp_path / "log"):
            await asyncio.sleep(0.01)


async def test_an_exit_code_is_seen_and_the_last_words_are_kept(tmp_path: Path) -> None:
    child = python(tmp_path, "import sys; print('last words', file=sys.stderr); sys.exit(7)")
    await asyncio.wait_for(child.exited.wait(), 60)
    assert child.exit == Exit(7)
    assert child.tail() == "last words"


async def test_a_child_gets_our_environment_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    child = python(tmp_path, "import os; print(sorted(os.environ))", ONLY="this")
    await asyncio.wait_for(child.exited.wait(), 60)
    assert "ONLY" in child.tail()
    assert "ANTHROPIC_API_KEY" not in child.tail()


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    child = python(
        tmp_path,
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)",
    )
    await until_it_says(tmp_path, "on")
    assert await asyncio.wait_for(child.stop(0.05), 60) == Exit(None, 9)
    assert await child.stop(0.05) == Exit(None, 9), "a second stop is no error"


async def test_what_a_child_started_goes_with_it(tmp_path: Path) -> None:
    child = python(tmp_path, "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)")
    await asyncio.wait_for(child.exited.wait(), 60)
    grandchild = int(child.tail())
    async with asyncio.timeout(60):
        while _lives(grandchild):
            await asyncio.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_the_end_of_a_child_is_told(tmp_path: Path) -> None:
    told = asyncio.Event()
    start(
        "child",
        ["/bin/true"],
        environment={},
        log=tmp_path / "deep" / "log",
        folder=tmp_path,
        on_exit=told.set,
    )
    await asyncio.wait_for(told.wait(), 60)


async def test_only_named_descriptors_are_handed_down(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        child = start(
            "child",
            ["/bin/ls", "/proc/self/fd"],
            environment={},
            log=tmp_path / "log",
            folder=tmp_path,
            pass_fds=[write],
        )
        await asyncio.wait_for(child.exited.wait(), 60)
        assert str(write) in child.tail().split()
        assert str(read) not in child.tail().split()
    finally:
        os.close(read)
        os.close(write)
