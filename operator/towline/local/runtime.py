"""The runtime folder of one launcher: sockets, tokens and keys, for as long as it lives, readable by its user alone.

Called by `store.py`. The folder is short, since a unix socket's path has 107 bytes, and its owner holds a lock in it:
what a launcher killed with -9 left behind (its keys among it) is removed by the next one.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "towline-"
YOUNG_SECONDS = 10.0  # a folder this young may belong to a launcher that is just about to lock it
LONGEST_PARENT = 40  # bytes; leaves room for sockets some folders below


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """A new folder, removed at the end with all that is in it."""
    parent = _parent()
    remove_abandoned(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def _parent() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= LONGEST_PARENT else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def remove_abandoned(parent: Path) -> None:
    """Removes the runtime folders of this user whose launcher is dead: the kernel let go of their lock."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or no folder of ours
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(lock).st_mtime > YOUNG_SECONDS:
                remove_folder(folder)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def remove_folder(folder: Path) -> None:
    """Removes a folder whatever a sandbox left in it: folders nobody may enter, or nested deeper than a path can name.

    What resists stays; whoever removes temporary files gets it later.
    """
    try:
        entries = list(os.scandir(folder))
        # Every folder found is moved up and emptied there, so neither recursion nor the length of a path grows.
        found = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        while found:
            current = found.pop()
            current.chmod(stat.S_IRWXU)
            for entry in list(os.scandir(current)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, stat.S_IRWXU)
                    moved = folder / f"removing-{entry.inode()}-{len(found)}"
                    os.rename(entry.path, moved)
                    found.append(moved)
                else:
                    os.unlink(entry.path)
            current.rmdir()
        folder.rmdir()
    except OSError:
        pass


def write_secret(path: Path, secret: bytes) -> Path:
    """Writes a file that only this user can read, whole or not at all; an older one is replaced. Returns its path."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
    new.rename(path)
    return path
