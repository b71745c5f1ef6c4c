"""docs/architecture.md is a map: every file and name on it exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "operator" / "towline"
ENTRIES = re.findall(
    r"`([\w/]+\.(?:py|lua))(?: : (\w+))?`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
)


def test_the_map_is_not_empty():
    assert len(ENTRIES) > 50


@pytest.mark.parametrize(("path", "name"), sorted(set(ENTRIES)))
def test_an_entry_of_the_map_exists(path: str, name: str):
    source = (PACKAGE / path).read_text(encoding="utf-8")
    if name:
        assert re.search(rf"^(?:async )?(?:def|class) {name}\b", source, re.MULTILINE), f"{path} defines no {name}"


@pytest.mark.parametrize("package", sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()))
def test_every_package_is_on_the_map(package: str):
    assert any(path.startswith(f"{package}/") for path, _ in ENTRIES)
