"""A real API server and etcd without nodes, and an operator in this process: pods are played, the rest is real.

The suite needs the programs that `python -m e2e.cluster build` makes; without them it is skipped, unless CI is set.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kopf", reason="the extra `operator` is not installed")

from tests.control_plane.stage import ControlPlane, Stage

ROOT = Path(__file__).parents[2]


def _cluster(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "e2e.cluster", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """API server and etcd of this session."""
    name = f"cp-{os.getpid()}"
    up = _cluster("up", "--name", name, "--control-plane-only")
    if up.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"no control plane: {up.stderr}")
        pytest.skip(f"no control plane: {up.stderr.strip().splitlines()[-1]}")
    try:
        told = _cluster("env", "--name", name).stdout.splitlines()
        said = dict(line.removeprefix("export ").split("=", 1) for line in told)
        yield ControlPlane(name, Path(said["KUBECONFIG"]), Path(said["PATH"].partition(":")[0]))
    finally:
        _cluster("down", "--name", name)


@pytest.fixture
async def stage(control_plane: ControlPlane, valkey_url: str) -> AsyncIterator[Stage]:
    """A fresh set of namespaces, with the kinds that every run needs."""
    made = await Stage.enter(control_plane, valkey_url)
    try:
        yield made
    finally:
        await made.leave()


@pytest.fixture
def valkey_later(valkey_binary: str, tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The URL of a server that does not run yet, and what starts it."""
    socket = tmp_path / "later.sock"
    servers: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--save", ""]
        servers.append(subprocess.Popen([valkey_binary, *options], stdout=subprocess.DEVNULL))

    yield f"unix://{socket}", start
    for server in servers:
        server.terminate()
        server.wait(10)
