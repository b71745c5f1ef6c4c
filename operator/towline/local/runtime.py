"""The runtime folder of one launcher: sockets, tokens and keys, for as long as it lives, readable by its user alone.

Called by `store.py`. The folder is short, since a unix socket's path has 107 bytes, and its owner holds a lock in it:
so others see that it lives, and what a launcher killed with -9 left behind (its keys among it) is removed by the next.
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
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever else has it is just looking
        yield folder
    finally:
        remove_folder(folder)
        os.close(lock)


def living() -> list[Path]:
    """The runtime folders of this user's launchers that are at work, the oldest first."""
    found = []
    for folder in _parent().glob(f"{PREFIX}*"):
        with _lock_of(folder) as lock:
            if lock is not None and not _taken(lock):
                found.append((os.fstat(lock).st_mtime, folder))
    return [folder for _, folder in sorted(found)]


def _parent() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= LONGEST_PARENT else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def remove_abandoned(parent: Path) -> None:
    """Removes the runtime folders of this user whose launcher is dead: the kernel let go of their lock."""
    for folder in parent.glob(f"{PREFIX}*"):
        with _lock_of(folder) as lock:
            if lock is not None and _taken(lock) and time.time() - os.fstat(lock).st_mtime > YOUNG_SECONDS:
                remove_folder(folder)


@contextmanager
def _lock_of(folder: Path) -> Iterator[int | None]:
    """The lock file of a runtime folder, open; None for one that is gone meanwhile, or not this user's."""
    try:
        mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
        lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW) if mine else None
    except OSError:
        lock = None
    try:
        yield lock
    finally:
        if lock is not None:
            os.close(lock)


def _taken(lock: int) -> bool:
    """Whether we have the lock now: then its launcher is dead."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
