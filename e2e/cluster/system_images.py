"""The images that the cluster itself needs, a static program each: pause (it holds a pod's namespaces) and CoreDNS."""

import shutil
import tempfile
from pathlib import Path

from e2e.cluster.layout import COREDNS_IMAGE, PAUSE_IMAGE
from images.oci import Config, write

IMAGES = {
    "pause": (PAUSE_IMAGE, Config(("/pause",), user="65535:65535")),
    "coredns": (COREDNS_IMAGE, Config(("/coredns",))),
}


def archives(bin_folder: Path) -> list[Path]:
    return [bin_folder / f"{name}.tar" for name in IMAGES]


def make(bin_folder: Path) -> None:
    """Write the archives that are missing, beside the binaries they hold."""
    for archive in archives(bin_folder):
        if not archive.exists():
            reference, config = IMAGES[archive.stem]
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy2(bin_folder / archive.stem, folder)
                write(archive, reference, [Path(folder)], config)
