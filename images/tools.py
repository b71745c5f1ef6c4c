"""The tools image: the tool server with an interpreter of its own, which runs inside any user's image.

It has one folder, `rt/`, since it is mounted as an image volume at `/opt/towline`, or copies itself there as an init
container: with the loader it brings, so it needs no shell. towline.sandbox.bundle makes the folder from the interpreter
it runs on; here that is the base image's, so that the result does not depend on the machine.
"""

import os
import shutil
import tempfile
from pathlib import Path

from images.base import REPEATABLE, call
from images.oci import Config
from images.requirements import REPOSITORY

NAME = "tools"
CONFIG = Config(user="10001:10001")
BUNDLE = """
import pathlib, sys
sys.path.insert(0, "/operator")
from towline.sandbox.bundle import build_bundle
print(build_bundle(pathlib.Path("/bundle")).folder)
"""


def fill(tree: Path, base_tree: Path) -> None:
    """Put the image's only layer at `tree`."""
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        root = Path(folder, "root")
        shutil.copytree(base_tree, root, symlinks=True)
        shutil.copytree(REPOSITORY / "operator", root / "operator", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "dev" / "null").touch()  # an empty file reads as empty, too; a device would need more rights
        printed = call(*enter(root), "/usr/bin/python3", "-B", "-c", BUNDLE, env=REPEATABLE).strip()
        shutil.move(root / printed.lstrip("/") / "rt", tree / "rt")


def enter(root: Path) -> tuple[str | Path, ...]:
    """What runs a program with `root` as its whole world; in a user namespace for those who may not do it otherwise."""
    chroot = ("/usr/sbin/chroot", root)
    return chroot if os.geteuid() == 0 else ("/usr/bin/unshare", "--map-root-user", "--", *chroot)
