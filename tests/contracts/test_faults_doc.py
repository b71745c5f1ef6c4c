"""docs/faults.md names tests: each of them exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8"))


def test_the_page_names_tests():
    assert len(NAMED) > 40


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_a_test_that_is_named_exists(path: str, name: str):
    file = ROOT / path if path.startswith("e2e/") else ROOT / "tests" / path

    assert re.search(rf"^(?:async )?def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE), (
        f"{path} has no {name}"
    )
