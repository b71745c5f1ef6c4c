"""Failpoints: each of the list stands once in the code, and a process that was not told of one passes it by."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from towline import failpoints
from towline.errors import Invalid
from towline.settings import HarnessSettings, read

PACKAGE = Path(failpoints.__file__).parent
HIT = re.compile(r"failpoints\.hit\((.*?)\)")
ENVIRONMENT = {
    "TOWLINE_REDIS_URL": "unix:///x",
    "TOWLINE_RUN_NAMESPACE": "default",
    "TOWLINE_RUN_UID": "u",
    "TOWLINE_EPOCH": "1",
    "TOWLINE_GATEWAY_URL": "http://127.0.0.1:1/mcp",
    "TOWLINE_GATEWAY_TOKEN_FILE": "/x",
}


def placed() -> Counter[str]:
    """What stands between the brackets of every `failpoints.hit(…)` of the package."""
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    return Counter(argument for source in sources for argument in HIT.findall(source))


def test_every_point_stands_exactly_once_in_the_code_and_no_other_does():
    assert placed() == Counter({f'"{name}"': 1 for name in failpoints.POINTS})


def test_there_are_points_in_every_trusted_process():
    prefixes = Counter(name.partition(".")[0] for name in failpoints.POINTS)

    assert set(prefixes) == {"harness", "gateway", "operator"}
    assert prefixes.total() >= 40


def test_the_list_is_the_names_one_a_line_and_nothing_else():
    command = [sys.executable, "-m", "towline.testing.failpoints", "--list"]

    listed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert listed.stdout.splitlines() == list(failpoints.POINTS)


def test_nothing_happens_in_a_process_that_was_not_told_of_a_point():
    failpoints.hit("harness.append.before")


def test_a_process_is_told_by_its_environment():
    given = read(HarnessSettings, ENVIRONMENT | {"TOWLINE_FAILPOINT": "harness.append.after:3:stop"})

    assert given.failpoint == failpoints.Armed("harness.append.after", 3, "stop")
    assert read(HarnessSettings, ENVIRONMENT).failpoint is None


@pytest.mark.parametrize(
    "text", ["harness.nowhere:1", "harness.append.after", "harness.append.after:0", "harness.append.after:1:boom"]
)
def test_a_point_that_does_not_exist_or_cannot_be_hit_is_refused_at_the_start(text: str):
    with pytest.raises(Invalid, match="TOWLINE_FAILPOINT="):
        read(HarnessSettings, ENVIRONMENT | {"TOWLINE_FAILPOINT": text})
