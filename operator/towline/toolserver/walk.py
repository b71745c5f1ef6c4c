"""list_dir and search: they walk a tree, for any time, so they run in a forked child that can be killed.

`tools.py` starts them by `Executor.worker`; they write their lines to the given descriptor and return. No symbolic link
is followed on the way. A catastrophic regular expression burns the child's time, and ends with it.
"""

import fnmatch
import os
import re
import resource
import stat
from collections.abc import Iterator

ENTRY_LIMIT = 5_000
"""Entries that one list_dir shows."""
FILE_LIMIT = 10 * 1024 * 1024
"""Bytes of one file that search looks at; larger files are skipped and named."""
LINE_LIMIT = 4096
"""Bytes of a line that the pattern sees: a minified file is one line."""
SHOWN_LIMIT = 300
"""Characters of a matching line that are shown."""
DEPTH_LIMIT = 100
"""Folders in folders that search enters."""
MEMORY_LIMIT = 512 * 1024 * 1024
"""Address space of the child: a pattern can ask for any amount when it is compiled."""
SKIPPED = frozenset({".git"})
"""Folders that search does not enter."""

BAD_PATTERN = 3
"""Exit status of a search whose pattern cannot be used; its output says why."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def list_dir(folder: int, depth: int, output: int) -> int:
    """Write one line for each entry below `folder`, sorted, folders before what they hold; returns an exit status."""
    _limit_memory()
    lines: list[str] = []
    for path, status, target in _entries(folder, depth):
        if len(lines) == ENTRY_LIMIT:
            lines.append(f"[more than {ENTRY_LIMIT} entries; list a folder below, or less depth]\n")
            break
        if stat.S_ISDIR(status):
            path += "/"
        elif stat.S_ISLNK(status):
            path += f" -> {target}"
        elif not stat.S_ISREG(status):
            path += " (no regular file)"
        lines.append(path.replace("\n", "\\n") + "\n")
    _write(output, "".join(lines))
    return 0


def _entries(folder: int, depth: int, prefix: str = "") -> Iterator[tuple[str, int, str]]:
    """Path, mode and link target of what lies below an open folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(mode) else ""
        except OSError:  # gone meanwhile
            continue
        yield prefix + name, mode, target
        if depth > 1 and stat.S_ISDIR(mode):
            try:
                below = os.open(name, _FOLDER, dir_fd=folder)
            except OSError:
                continue
            try:
                yield from _entries(below, depth - 1, f"{prefix}{name}/")
            finally:
                os.close(below)


def search(folder: int, name: str, shown: str, pattern: str, glob: str | None, most: int, output: int) -> int:
    """Write `path:line: text` for each line that matches `pattern`, at most `most` of them; returns an exit status.

    `name` is a file or folder in `folder` and `shown` its path for the reader, "" for the workspace. `glob` is matched
    against the name of a file, or against its path if it has a slash. A bad pattern is explained in the output.
    """
    _limit_memory()
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, MemoryError) as fault:
        _write(output, f"pattern: {fault or 'it needs too much memory'}")
        return BAD_PATTERN
    found = 0
    for path, opened in _files(folder, name, shown, 0):
        try:
            if glob is not None and not _fits(path, glob):
                continue
            if os.fstat(opened).st_size > FILE_LIMIT:
                _write(output, f"{path}: [skipped: more than {FILE_LIMIT} bytes]\n")
                continue
            with os.fdopen(os.dup(opened), "rb") as file:
                data = file.read(FILE_LIMIT)
        except OSError:  # unreadable: as good as absent
            continue
        finally:
            os.close(opened)
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), 1):
            text = line[:LINE_LIMIT].rstrip(b"\r").decode("utf-8", "replace")
            if expression.search(text):
                _write(output, f"{path}:{number}: {text[:SHOWN_LIMIT]}\n")
                found += 1
                if found == most:
                    _write(output, f"[stopped after {most} matches]\n")
                    return 0
    return 0


def _fits(path: str, glob: str) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(path if "/" in each else name, each) for each in (glob, glob.removeprefix("**/")))


def _files(folder: int, name: str, shown: str, depth: int) -> Iterator[tuple[str, int]]:
    """Path and descriptor of each regular file at and below `name`; the receiver closes the descriptor."""
    try:
        # Looked at first: to open a FIFO, even for a moment, would wake its writer.
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        mode = os.fstat(opened).st_mode
    except OSError:
        return
    if stat.S_ISREG(mode):
        yield shown, opened
        return
    try:
        children = sorted(os.listdir(opened)) if stat.S_ISDIR(mode) and depth < DEPTH_LIMIT else []
        for child in children:
            if child not in SKIPPED:
                yield from _files(opened, child, f"{shown}/{child}" if shown else child, depth + 1)
    finally:
        os.close(opened)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def _write(output: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "surrogateescape"))
    while data:
        data = data[os.write(output, data) :]
