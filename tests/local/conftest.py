"""The `towline` command as a fixture; nothing of it may be left when its test ends.

The test process is a subreaper: whatever a launcher leaves behind becomes a child of it, and is found.
"""

import ctypes
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.command import Towline

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="session")
def bundle_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session: the sandbox's interpreter bundle is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def towline(tmp_path: Path, bundle_cache: Path) -> Iterator[Towline]:
    """The command; at the end of the test no process of it may be left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = Towline(tmp_path, bundle_cache, frozenset()).descendants()
    with tempfile.TemporaryDirectory(prefix="tt-") as temporary:  # short: a socket's path has 107 bytes
        command = Towline(tmp_path, bundle_cache, frozenset(before), Path(temporary))
        yield command
        _end(command)


def _end(command: Towline) -> None:
    for process in command.started:
        if process.poll() is None:
            process.kill()
            process.wait()
    try:
        command.assert_nothing_is_left()
    finally:
        for pid in command.descendants():
            os.kill(pid, signal.SIGKILL)
        for stream in (s for p in command.started for s in (p.stdout, p.stderr) if s is not None):
            stream.close()
