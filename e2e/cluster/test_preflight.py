"""Whether a machine can run nodes is known before anything starts, and said in one line: CI prints it."""

import os
import subprocess
import sys

import pytest

from e2e.cluster import places

PREFLIGHT = (sys.executable, "-m", "e2e.cluster", "preflight")
WITHOUT_RIGHTS = ("unshare", "--user", "--map-root-user", "--")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to show what it is without rights")


def preflight(*before: str) -> subprocess.CompletedProcess[str]:
    line = (*before, *PREFLIGHT)
    return subprocess.run(line, cwd=places.REPOSITORY, capture_output=True, text=True, timeout=60)  # noqa: S603


def test_a_machine_that_runs_this_suite_passes_and_nothing_is_said() -> None:
    done = preflight()

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_machine_that_lets_us_make_no_node_is_told_in_one_line() -> None:
    if subprocess.run([*WITHOUT_RIGHTS, "true"], capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip("needs user namespaces")

    done = preflight(*WITHOUT_RIGHTS)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("e2e.cluster preflight: this machine does not let us make a ")
