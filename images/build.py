"""Make a role's archive: the layers in a cache folder, then the OCI archive from them.

The base layer is made once and kept; a role's own layer is made anew each time, which takes seconds.
"""

import hashlib
import inspect
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from images import base, oci, tools, valkey
from images.roles import ROLES, Role

REGISTRY = "localhost"
TAG = "dev"
#: Images that do not stand on the base.
ALONE = {module.NAME: module for module in (tools, valkey)}
NAMES = (*(role.name for role in ROLES), *ALONE)


def archive(name: str, cache: Path) -> Path:
    """Build the archive of one image; returns its path. Its name in a pod is `reference(name)`."""
    target = cache / f"{name}.tar"
    with layers(name, cache) as folders:
        oci.write(target, reference(name), folders, config(name))
    return target


def python_archive(cache: Path) -> Path:
    """The base alone, as an image that runs Python: for tests that need any program at all. Built once."""
    tree = base_tree(cache)
    target = cache / f"{tree.name}.tar"
    if not target.exists():
        oci.write(
            target,
            reference("python"),
            [tree],
            oci.Config(("/usr/bin/python3",), env={"LANG": "C.UTF-8", "PATH": "/usr/bin"}),
        )
    return target


def reference(name: str) -> str:
    return f"{REGISTRY}/towline-{name}:{TAG}"


def config(name: str) -> oci.Config:
    return ALONE[name].CONFIG if name in ALONE else role(name).config


def tree(name: str, target: Path, cache: Path) -> None:
    """Lay the whole root folder of an image at `target`: the first stage of a Dockerfile."""
    with layers(name, cache) as folders:
        for folder in folders:
            shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)


@contextmanager
def layers(name: str, cache: Path) -> Iterator[list[Path]]:
    """The folders of an image's layers, lowest first."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        own = Path(folder, "layer")
        own.mkdir()
        below = base_tree(cache)
        if name in ALONE:
            ALONE[name].fill(own, below)
            yield [own]
        else:
            role(name).fill(own, below)
            yield [below, own]


def base_tree(cache: Path) -> Path:
    """The base's root folder, named by its recipe, so that a changed recipe makes another."""
    recipe = hashlib.sha256(inspect.getsource(base).encode()).hexdigest()[:12]
    folder = cache / f"base-{recipe}"
    if not folder.exists():
        base.make(folder)
    return folder


def role(name: str) -> Role:
    return next(role for role in ROLES if role.name == name)
