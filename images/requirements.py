"""Which lines of requirements.lock a role needs, and their installation for the image's Python.

The lock holds everything a developer needs, with digests. pip tells which of it an extra of pyproject.toml pulls in;
then exactly those lines are installed, digests checked, from wheels alone.
"""

import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from images.base import Failed, call

REPOSITORY = Path(__file__).resolve().parent.parent
LOCK = REPOSITORY / "requirements.lock"
#: Wheels for the base image: CPython 3.13, and a C library of 2.41 which runs everything built for an older one.
TARGET = (
    "--python-version=3.13",
    "--implementation=cp",
    *(f"--platform=manylinux_2_{minor}_x86_64" for minor in (39, 38, 35, 34, 31, 28, 24, 17, 12, 5)),
    *(f"--platform=manylinux{year}_x86_64" for year in ("2014", "2010", "1")),
    "--only-binary=:all:",
)
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


def install(extra: str, target: Path) -> None:
    """Install what `towline[extra]` needs, towline itself left out, into the folder `target`."""
    install_entries(locked(extra), target)


def install_one(name: str, target: Path) -> None:
    """Install one package of the lock alone."""
    install_entries(parse(LOCK.read_text())[name], target)


def install_entries(entries: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        subset = Path(folder, "requirements.txt")
        subset.write_text(entries)
        call(
            *PIP,
            "install",
            "--no-deps",
            "--require-hashes",
            "--no-compile",
            *TARGET,
            f"--target={target}",
            f"--requirement={subset}",
        )


def locked(extra: str) -> str:
    """The lock's entries, digests included, for the extra and everything below it."""
    entries = parse(LOCK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")  # pip takes digests in a constraint for a demand on every requirement
        pins.write_text("\n".join(entry.split(" \\\n")[0] for entry in entries.values()))
        nowhere = f"--target={folder}/none"
        report = call(
            *PIP, "install", "--dry-run", "--report=-", f"--constraint={pins}", *TARGET, nowhere, *wanted(extra)
        )
    names = sorted(normal(item["metadata"]["name"]) for item in json.loads(report)["install"])
    if unknown := [name for name in names if name not in entries]:
        raise Failed(
            f"towline[{extra}] needs {', '.join(unknown)}, which {LOCK.name} lacks: compile it anew (CONTRIBUTING.md)"
        )
    return "\n".join(entries[name] for name in names)


def wanted(extra: str) -> list[str]:
    extras: dict[str, list[str]] = project()["optional-dependencies"]
    if extra not in extras:
        raise Failed(f"pyproject.toml has no extra {extra!r}, only {', '.join(extras)}")
    return [*project()["dependencies"], *extras[extra]]


def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return table


def parse(lock: str) -> dict[str, str]:
    """Name to entry; an entry is `name==version \\` and its digests, without comments."""
    entries: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lock.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            current = entries[normal(line.split("==")[0])] = [line]
        elif line.lstrip().startswith("--hash"):
            current.append(line)
    return {name: "\n".join(lines).removesuffix(" \\") for name, lines in entries.items()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
