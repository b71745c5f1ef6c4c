"""A sealed process can start nothing, whatever it tries; and it can do its work."""

import errno
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
UNKNOWN_MACHINE = (
    "import os, types; os.uname = lambda: types.SimpleNamespace(machine='riscv64'); "
    "import runpy; runpy.run_module({module!r}, run_name='__main__')"
)


def run(*arguments, code=None):
    program = ["-c", code] if code else [str(HERE / arguments[0]), *arguments[1:]]
    return subprocess.run([sys.executable, *program], capture_output=True, text=True, timeout=100)


def test_no_way_to_start_a_program_gets_through(tmp_path):
    marker = tmp_path / "marker"

    child = run("attempts.py", "sealed", str(marker))

    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert len(found["outcomes"]) + len(found["refusals"]) >= 60
    assert not marker.exists(), f"got through: {found}"
    # A pipe from a shell that never ran is just empty.
    silent = {"os.popen", "libc popen", "multiprocessing spawn"}
    assert {name for name, outcome in found["outcomes"].items() if not outcome.startswith("refused")} <= silent
    assert found["refusals"].pop("raw clone3") == errno.ENOSYS
    assert set(found["refusals"].values()) == {errno.EPERM}, found["refusals"]


def test_the_attempts_are_real_ones_without_the_seal(tmp_path):
    marker = tmp_path / "marker"

    child = run("attempts.py", "unsealed", str(marker))

    assert child.returncode == 0, child.stderr
    assert len(marker.read_text().splitlines()) >= 36


def test_harness_and_gateway_can_do_their_work(valkey_url):
    child = run("work.py", valkey_url, f"seal-{secrets.token_hex(4)}")

    assert child.returncode == 0, child.stderr
    once = ["threads", "getaddrinfo", "redis", "uvicorn and aiohttp", "tls"]
    assert json.loads(child.stdout) == [*once, *once, "uvloop"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the 32-bit entry is x86's")
def test_a_32_bit_system_call_kills_the_process():
    child = run("foreign.py")

    assert child.stdout == ""
    # SIGSEGV where the kernel was built without the 32-bit entry.
    assert child.returncode in (-signal.SIGSYS, -signal.SIGSEGV)


@pytest.mark.parametrize("module", ["towline.harness", "towline.gateway"])
def test_a_process_that_cannot_seal_itself_ends_with_13_before_anything_else(module):
    child = run(code=UNKNOWN_MACHINE.format(module=module))

    assert child.returncode == 13
    line = json.loads(child.stderr)
    assert (line["event"], line["reason"]) == ("sealing failed", "SealFailed")
    assert "riscv64" in line["message"]


def test_a_canary_that_gets_through_ends_the_process_with_13():
    child = run(code="from towline.seal import prove; prove(); print('unsealed and alive')")

    assert (child.returncode, child.stdout) == (13, "")


def test_sealing_takes_less_than_ten_milliseconds_and_binds_for_good():
    child = run(
        code="import time; from towline.seal import seal, prove; t = time.perf_counter(); one = seal(); prove(); "
        "took = time.perf_counter() - t; two = seal(); print(took, one.filters, two.filters)"
    )

    took, before, after = child.stdout.split()
    assert float(took) < 0.1  # 1 ms measured; a loaded machine is no failure
    assert int(after) == int(before) + 1
