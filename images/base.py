"""The root folder that every role stands on: Debian 13's Python 3.13, certificates, time zones, and nothing else.

No shell, no package manager, no other program: only what the list below names is taken from the unpacked packages. The
standard library is compiled, since a read-only root never caches it. Needs mmdebstrap, and a Debian package mirror.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SUITE = "trixie"
PACKAGES = ("python3-minimal", "libpython3.13-stdlib", "ca-certificates", "netbase", "media-types", "tzdata", "libc6")
PYTHON = "usr/bin/python3.13"
STDLIB = "usr/lib/python3.13"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
DIST_PACKAGES = "usr/local/lib/python3.13/dist-packages"
"""Where Debian's Python looks for what did not come as a package; also under `python3 -I`."""

#: Globs beneath the unpacked packages.
WANTED = (
    PYTHON,
    "usr/bin/python3",
    STDLIB,
    "etc/python3.13",
    "usr/lib64/ld-linux-x86-64.so.2",
    f"{LIBRARIES}/*.so*",
    f"{LIBRARIES}/ossl-modules",
    "etc/ssl/openssl.cnf",
    "usr/lib/ssl",
    "etc/protocols",
    "etc/services",
    "etc/mime.types",
    "usr/share/zoneinfo",
)
#: Parts of the standard library that no server uses: tests and tools. (`_pyrepl` stays: `kubernetes` imports pydoc.)
UNWANTED = ("test", "pydoc_data", "idlelib", "turtledemo", "turtle.py", "ensurepip", "lib2to3")

ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/none\ntowline:x:65532:65532:towline:/tmp:/none\n",
    "etc/group": "root:x:0:\ntowline:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\npasswd: files\ngroup: files\n",
}

REPEATABLE = {"PYTHONHASHSEED": "0"}
"""Environment of every compilation: sets are written into bytecode in the order of their hashes."""


class Failed(Exception):
    """Something a person must look at; the message says what."""


def make(tree: Path) -> None:
    """Make the root folder at `tree`, which must not exist; it appears only when it is whole."""
    unpacked, unfinished = tree.with_name(f".{tree.name}.packages"), tree.with_name(f".{tree.name}")
    for path in (unpacked, unfinished):
        shutil.rmtree(path, ignore_errors=True)
    tree.parent.mkdir(parents=True, exist_ok=True)
    try:
        # `extract` unpacks without running any package's scripts, so nothing of the machine gets in.
        call("mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(PACKAGES)}", SUITE, unpacked)
        for pattern in WANTED:
            take(unpacked, unfinished, pattern)
        finish(unpacked, unfinished)
        compile_tree(unfinished, unfinished / STDLIB)
        unfinished.rename(tree)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def take(source: Path, target: Path, pattern: str) -> None:
    found = sorted(source.glob(pattern))
    if not found:
        raise Failed(f"{pattern}: not in Debian {SUITE}'s packages {', '.join(PACKAGES)}")
    for path in found:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, copy, symlinks=True, ignore=unwanted)
        else:
            shutil.copy2(path, copy, follow_symlinks=False)


def unwanted(folder: str, names: list[str]) -> set[str]:
    return set(UNWANTED).intersection(names) if folder.endswith(STDLIB) else set()


def finish(unpacked: Path, tree: Path) -> None:
    """What the packages' own scripts would have done: the merged /usr, accounts, the one file of certificates."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (tree / "usr" / name).mkdir(exist_ok=True)
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("dev", "proc", "sys", "run", "etc/ssl/certs", DIST_PACKAGES):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (tree / name).mkdir(parents=True)
        (tree / name).chmod(0o1777)
    for name, text in ACCOUNTS.items():
        (tree / name).write_text(text)
    certificates = sorted((unpacked / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = "".join(path.read_text().rstrip("\n") + "\n" for path in certificates)
    (tree / "etc/ssl/certs/ca-certificates.crt").write_text(bundle)


def compile_tree(base: Path, folder: Path, root: Path | None = None) -> None:
    """Compile all beneath `folder` with the image's own interpreter. `root` is what becomes `/` (default: `base`).

    `unchecked-hash`: no look at the source's time or content at start, and the same bytes on every machine.
    """
    as_seen_inside = ("-s", str(root or base), "-p", "/")
    run_python(base, "-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash", *as_seen_inside, str(folder))


def run_python(base: Path, *arguments: str, path: Sequence[Path] = ()) -> str:
    """Run the image's interpreter in place, with its own libraries and no need to be root; returns what it printed."""
    loader = base / LIBRARIES / "ld-linux-x86-64.so.2"
    env = REPEATABLE | {
        "PYTHONHOME": str(base / "usr"),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return call(loader, "--library-path", base / LIBRARIES, base / PYTHON, *arguments, env=env)


def call(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a program to its end; its output goes into the error when it fails."""
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)  # noqa: S603 - no shell
    except FileNotFoundError as missing:
        raise Failed(
            f"{missing.filename}: no such program; images need mmdebstrap, and pip for their Python"
        ) from missing
    if done.returncode:
        raise Failed(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
