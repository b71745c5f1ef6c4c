"""A real API server and etcd without nodes, and an operator in this process: pods are played, the rest is real.

The suite needs the programs that `python -m e2e.cluster build` makes; without them it is skipped, unless CI is set.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.control_plane.stage import ControlPlane, OwnStore, Stage

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An operator that a test kills in the middle of opening a watch closes nothing: its process would be gone."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:Unclosed (client session|connector):ResourceWarning"))


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
def store_of_its_own(valkey_binary: str, tmp_path: Path) -> Iterator[OwnStore]:
    """A server that a test may start and stop; it does not run at first."""
    made = OwnStore(valkey_binary, tmp_path)
    yield made
    made.stop()
