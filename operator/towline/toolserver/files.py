"""read_file, write_file and edit_file, beneath the workspace.

Called by `tools.py`, on the event loop's thread: each is bounded by a size, so none takes long. What walks a tree is in
`walk.py`. Text goes in and out as UTF-8; bytes that are none are shown as U+FFFD.
"""

import os
import stat

from .beneath import Spot, Workspace, fault_of
from .capture import HEAD_BYTES, TAIL_BYTES, bounded, ends
from .result import Result, ToolFault, done

READ_LIMIT = 10 * 1024 * 1024
"""Bytes of a file that one call looks at."""


def read_file(workspace: Workspace, path: str, offset: int | None, limit: int | None) -> Result:
    """The file, or its lines from `offset` (the first is 1), at most `limit` of them; a long text loses its middle.

    `total_bytes` is the size of what was asked for.
    """
    with workspace.find(path) as spot:
        opened = spot.open_file()
    try:
        size = os.fstat(opened).st_size
        if offset is not None or limit is not None:
            return _lines(_read(opened, READ_LIMIT), size, path, offset or 1, limit)
        if size <= READ_LIMIT:
            # A file may grow, or hide its size as those of /proc do: what was read counts, not what was promised.
            data = _read(opened, READ_LIMIT)
            text, truncated = bounded(data)
            return Result("ok", text, len(data), truncated)
        head, tail = os.pread(opened, HEAD_BYTES, 0), os.pread(opened, TAIL_BYTES, size - TAIL_BYTES)
    except OSError as fault:
        raise fault_of(fault, path) from fault
    finally:
        os.close(opened)
    return Result("ok", ends(head, tail, size), size, truncated=True)


def _lines(data: bytes, size: int, path: str, offset: int, limit: int | None) -> Result:
    start = 0
    for _ in range(offset - 1):
        start = data.find(b"\n", start) + 1
        if start == 0:
            break
    if offset > 1 and (start == 0 or start >= len(data)):
        count = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        if size > len(data):
            raise ToolFault("TooLarge", f"line {offset} of {path} lies beyond its first {READ_LIMIT} bytes; use exec")
        raise ToolFault("OutOfRange", f"{path} has {count} lines, there is no line {offset}")
    end = len(data)
    if limit is not None:
        end = start
        for _ in range(limit):
            newline = data.find(b"\n", end)
            if newline < 0:
                end = len(data)
                break
            end = newline + 1
    text, truncated = bounded(data[start:end])
    return Result("ok", text, end - start, truncated)


def _read(opened: int, most: int) -> bytes:
    pieces = []
    while most > 0 and (piece := os.read(opened, min(most, 1 << 20))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def write_file(workspace: Workspace, path: str, content: str, mode: int | None = None) -> Result:
    """Create or replace a file, with its folders: readers see the old content or the new, never a part.

    `mode` (permission bits) is for seeding; without it an existing file keeps its own.
    """
    data = content.encode("utf-8", "replace")
    with workspace.find(path, make_folders=True) as spot:
        _replace(spot, data, mode)
    return done(f"Wrote {len(data)} bytes to {path}.")


def edit_file(workspace: Workspace, path: str, old_text: str, new_text: str, replace_all: bool) -> Result:
    """Replace the one occurrence of `old_text`, or every one."""
    old, new = old_text.encode(), new_text.encode()
    with workspace.find(path) as spot:
        opened = spot.open_file()
        try:
            data = _read(opened, READ_LIMIT + 1)
        except OSError as fault:
            raise fault_of(fault, path) from fault
        finally:
            os.close(opened)
        if len(data) > READ_LIMIT:
            raise ToolFault("TooLarge", f"{path} has more than {READ_LIMIT} bytes; use exec to edit it")
        count = data.count(old)
        if count == 0:
            raise ToolFault("NoMatch", f"old_text does not occur in {path}; read the file again")
        if count > 1 and not replace_all:
            raise ToolFault("NotUnique", f"old_text occurs {count} times in {path}; give more context or replace_all")
        if len(data) + count * (len(new) - len(old)) > READ_LIMIT:
            raise ToolFault("TooLarge", f"{path} would have more than {READ_LIMIT} bytes; use exec to edit it")
        _replace(spot, data.replace(old, new), None)
    return done(f"Replaced {count} occurrence{'' if count == 1 else 's'} in {path}.")


def _replace(spot: Spot, data: bytes, mode: int | None) -> None:
    """Write beside the file, then rename over it. A link that appears there meanwhile is replaced, not followed."""
    before = spot.status()
    if before is not None and not stat.S_ISREG(before.st_mode):
        code = "IsDirectory" if stat.S_ISDIR(before.st_mode) else "NotRegular"
        raise ToolFault(code, f"{spot.path} exists and is not a regular file")
    if mode is None:
        mode = 0o644 if before is None else stat.S_IMODE(before.st_mode) & 0o777
    temporary = f".towline-{os.urandom(8).hex()}"
    try:
        opened = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=spot.folder
        )
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(opened, view) :]
                os.fchmod(opened, mode)
            finally:
                os.close(opened)
            os.rename(temporary, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder)
        except BaseException:
            os.unlink(temporary, dir_fd=spot.folder)
            raise
    except OSError as fault:
        raise fault_of(fault, spot.path) from fault
