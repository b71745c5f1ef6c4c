"""What a bubblewrap sandbox is made of, as bwrap's arguments: namespaces, files, environment.

Called by `bubblewrap.py`. It reads the host's folder layout to mirror it, and starts and writes nothing. The rule: what
is not named here does not exist inside. Above all no home, no /etc of the host, no socket, no network.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from towline.errors import SandboxFailed
from towline.sandbox.bundle import MOUNT, Bundle
from towline.sandbox.provider import SandboxRequest

VOLUME = "/sandbox"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP_BYTES = 512 * 1024 * 1024
"""Of /tmp, which is memory. TMPDIR lies on the volume."""

SHM_BYTES = 64 * 1024 * 1024
"""Of /dev/shm, as container engines have it."""

ETC: Mapping[str, str] = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/sandbox/home:/bin/sh\n",
    "group": "root:x:0:\nsandbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    # Without a network a lookup must fail at once, not after a timeout.
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""The synthetic /etc."""

_HOST_ETC = ("alternatives", "ld.so.cache")
"""Of the host's /etc: without them programs of /usr are not found, or load slowly. Both are world-readable lists."""

NOT_FOR_COMMANDS = ("TOWLINE_", "KUBERNETES_", "LD_", "PYTHON", "GLIBC_")

_IMAGE_OWN = frozenset(("dev", "proc", "sandbox", "tmp"))
"""Top-level folders that are ours, whatever an image has there."""


def namespaces(*, nested: bool) -> list[str]:
    """Everything unshared, nobody privileged; unless `nested`, no further user namespace can be made inside."""
    return [
        "--unshare-all",
        "--unshare-user",  # --unshare-all alone would go on without one
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "sandbox",
        "--cap-drop",
        "ALL",
        "--new-session",
        "--as-pid-1",
        "--clearenv",
        *(() if nested else ("--disable-userns",)),
    ]


def files(request: SandboxRequest, bundle: Bundle, etc: Path) -> list[str]:
    """All mounts of a sandbox; `etc` is the folder that holds the files of ETC."""
    volume = ["--bind", str(request.volume), VOLUME] if request.volume else ["--tmpfs", VOLUME]
    return [
        *(image_root(Path(request.image)) if request.image else host_root(etc)),
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 - inside
        *("--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"),  # noqa: S108 - inside
        *volume,
        *("--dir", str(MOUNT.parent)),
        *("--ro-bind", str(bundle.folder), str(MOUNT)),
        *("--remount-ro", "/"),
    ]


def host_root(etc: Path) -> list[str]:
    """The host's programs and libraries, read-only, and as much of /etc as they need."""
    mounts = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin"):
        mounts += _mirrored(Path(name), name)
    mounts += ["--dir", "/etc"]
    for name in ETC:
        mounts += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    for name in _HOST_ETC:
        if os.path.exists(f"/etc/{name}"):
            mounts += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    if prefix := interpreter_prefix():
        mounts += ["--ro-bind", str(prefix), str(prefix)]
    return [*mounts, "--dir", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp"]  # noqa: S108 - inside


def image_root(image: Path) -> list[str]:
    """The folder `image` as the root, read-only; piece by piece, so that our own mount points can lie between."""
    mounts = []
    for entry in sorted(image.iterdir()):
        if entry.name == MOUNT.parts[1] and entry.is_dir() and not entry.is_symlink():
            for child in sorted(entry.iterdir()):
                if child.name != MOUNT.name:
                    mounts += _mirrored(child, f"/{entry.name}/{child.name}")
        elif entry.name not in _IMAGE_OWN and entry.name != MOUNT.parts[1]:
            mounts += _mirrored(entry, f"/{entry.name}")
    return mounts


def _mirrored(source: Path, target: str) -> list[str]:
    """The same file, folder or link inside; nothing for what is not there."""
    if source.is_symlink():
        return ["--symlink", os.readlink(source), target]
    return ["--ro-bind", str(source), target] if source.exists() else []


def interpreter_prefix() -> Path | None:
    """Where this interpreter is installed, if that is not below /usr: so that `python3` exists inside everywhere."""
    prefix = Path(sys.base_prefix).resolve()
    # Two components at least: a prefix such as /home would show far more than an interpreter.
    narrow = len(prefix.parts) > 2 and (prefix / "bin" / "python3").exists()
    return prefix if narrow and not prefix.is_relative_to("/usr") else None


def environment(request: SandboxRequest, listener: int) -> dict[str, str]:
    """Of the tool server, which passes on only PATH and what TOWLINE_PASS_ENV lists.

    Raises SandboxFailed(BadRequest) for a variable that would act on the tool server or its loader.
    """
    for name in request.env:
        if name.startswith(NOT_FOR_COMMANDS):
            raise SandboxFailed("BadRequest", f"variable {name} of sandbox {request.name} cannot be set for commands")
    prefix = None if request.image else interpreter_prefix()
    return {
        **request.env,
        "PATH": f"{PATH}:{prefix}/bin" if prefix else PATH,
        "TOWLINE_LISTEN": f"fd:{listener}",
        "TOWLINE_SANDBOX_NAME": request.name,
        "TOWLINE_SANDBOX_KEY": request.key,
        "TOWLINE_VOLUME": VOLUME,
        "TOWLINE_MAX_PROCESSES": str(request.max_processes),
        "TOWLINE_PASS_ENV": ",".join(sorted(request.env)),
    }
