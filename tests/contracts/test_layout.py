"""What the layout promises: no shadowed standard module, one reader of the environment, downward imports."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_operator_folder_is_not_a_package():
    """With an `__init__.py` it would shadow the standard module `operator` for anything started in the root."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_the_standard_operator_module_is_the_one_imported_from_the_root():
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.add(1, 2))"], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout == "3\n"


def test_imports_point_down_only():
    linted = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout
