"""Each role's extra is enough for that role: a forgotten dependency shows here, not in an image.

Each environment is fresh and gets its packages from the lock, so the test also proves that the lock is complete.
"""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"

ROLES = {
    "": ["towline.events.follow", "towline.events.groups", "towline.inbox"],
    "harness": ["towline.harness.process"],
    "gateway": ["towline.gateway.app", "towline.gateway.api_server"],
    "cli": ["towline.cli.render", "towline.api.documents"],
    "operator": ["towline.controller.process", "towline.controller.handlers", "towline.controller.chart_hooks"],
    "local": ["towline.cli.__main__", "towline.local.launcher"],
}


def test_every_extra_is_tried():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(ROLES) == {"", *extras} - {"dev"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [
            UV,
            "build",
            "--quiet",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            folder,
            ROOT,
        ],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", ROLES)
def test_a_role_imports_with_its_extra_alone(extra: str, wheel: Path, tmp_path: Path):
    venv.create(tmp_path, with_pip=False, symlinks=True)
    python = tmp_path / "bin" / "python"
    name = f"towline[{extra}] @ {wheel.as_uri()}" if extra else f"towline @ {wheel.as_uri()}"
    constraints = tmp_path / "constraints.txt"
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    constraints.write_text("\n".join(line.rstrip(" \\") for line in lock if line and not line.startswith((" ", "#"))))

    installed = subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", python, "--constraint", constraints, name],
        capture_output=True,
        text=True,
    )
    assert installed.returncode == 0, installed.stderr
    imported = subprocess.run(
        [python, "-I", "-c", "; ".join(f"import {module}" for module in ROLES[extra])], capture_output=True, text=True
    )
    assert imported.returncode == 0, imported.stderr
