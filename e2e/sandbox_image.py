"""An image for sandboxes of the tests: the base's Python, and busybox for a shell and the usual programs.

Users take any image from anywhere; here there is no registry. Needs Debian's busybox-static.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from images import base, build, oci

NAME = "sandbox"
BUSYBOX = Path("/bin/busybox")


def archive(cache: Path) -> Path:
    """Build the archive; its name in a pod is `build.reference(NAME)`."""
    if not BUSYBOX.exists():
        raise base.Failed(f"{BUSYBOX}: no such program; apt-get install busybox-static")
    target = cache / f"{NAME}.tar"
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        programs = Path(folder) / "usr/bin"
        programs.mkdir(parents=True)
        shutil.copy2(BUSYBOX, programs / "busybox")
        listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)  # noqa: S603 - ours
        for name in listed.stdout.split():
            if not (programs / name).exists():
                (programs / name).symlink_to("busybox")
        config = oci.Config(("/usr/bin/sh",), env={"LANG": "C.UTF-8", "PATH": "/usr/bin"})
        oci.write(target, build.reference(NAME), [build.base_tree(cache), Path(folder)], config)
    return target
