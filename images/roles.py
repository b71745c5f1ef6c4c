"""What is in the image of each role. A role holds the part of the package that it runs, and the extra it needs for it.

A role's image cannot import what is not its business: the harness has nothing that reaches a cluster or a sandbox.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from images import base, requirements
from images.oci import Config

PACKAGE = requirements.REPOSITORY / "operator" / "towline"
#: What every role's process stands on: the modules at the bottom, and two packages.
SHARED = (*sorted(path.name for path in PACKAGE.glob("*.py")), "py.typed", "api", "events")
USER = "65532:65532"
ENV = {"LANG": "C.UTF-8", "PATH": "/usr/bin", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
IMPORT_ALL = """
import importlib, pkgutil, sys
for part in sys.argv[1:]:
    package = importlib.import_module(f"towline.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
"""


@dataclass(frozen=True, slots=True)
class Role:
    """`extra` is the one of pyproject.toml; `parts` are modules and packages of towline beside the shared ones."""

    name: str
    extra: str
    module: str
    parts: tuple[str, ...]

    @property
    def config(self) -> Config:
        return Config(("/usr/bin/python3", "-I", "-m", self.module), user=USER, env=ENV)

    def fill(self, tree: Path, base_tree: Path) -> None:
        """Put the role's own layer at `tree`; `base_tree` is the folder it will stand on."""
        packages = tree / base.DIST_PACKAGES
        requirements.install(self.extra, packages)
        shutil.rmtree(packages / "bin", ignore_errors=True)  # console scripts; nothing could run them
        for part in (*SHARED, *self.parts):
            copy(PACKAGE / part, packages / "towline" / part)
        describe(packages)
        base.compile_tree(base_tree, packages, root=tree)
        base.run_python(base_tree, "-c", IMPORT_ALL, *self.parts, path=[packages])  # nothing that it needs is missing


#: In the order of a run: who starts it, who thinks, who acts.
ROLES = (
    Role("operator", "operator", "towline.controller", ("controller", "kube", "manifests", "sandbox")),
    Role("harness", "harness", "towline.harness", ("harness",)),
    Role("gateway", "gateway", "towline.gateway", ("gateway",)),
)


def describe(packages: Path) -> None:
    """What tells the process its own version, as an installed package has it."""
    project = requirements.project()
    folder = packages / f"towline-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: towline\nVersion: {project['version']}\n")


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
