"""Finds files beneath the workspace and nowhere else, whatever symbolic links and renames do meanwhile.

Called by `files.py`, `walk.py` and `tools.py`. The kernel is asked for one path component at a time, relative to an
open directory, never following a link; links are followed here, and `..` climbs only the directories walked down. So
nothing above the workspace is ever opened. Hard links are not told apart from the file they share: that takes access
to the file in the first place.
"""

import errno
import os
import stat
from types import TracebackType

from .result import ToolFault

LINK_LIMIT = 40
"""Symbolic links followed for one path; the kernel's own limit."""
PATH_LIMIT = 4096

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Spot:
    """A place beneath the workspace: an open folder, and a name in it that need not exist and is no link.

    The name is "." for the workspace itself and for a path that ends in `..`. Use it in a `with` block.
    """

    def __init__(self, folder: int, name: str, path: str) -> None:
        self.folder, self.name, self.path = folder, name, path

    def __enter__(self) -> "Spot":
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.folder)

    def status(self) -> os.stat_result | None:
        """What is there; None for nothing."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise fault_of(fault, self.path) from fault

    def open_file(self) -> int:
        """A descriptor for reading a regular file. Never waits: a FIFO without a writer is refused, not opened."""
        self._require_regular(self.status())
        try:
            # The type may have changed since: O_NONBLOCK keeps the open short, and what was opened is looked at again.
            opened = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.folder)
        except OSError as fault:
            raise fault_of(fault, self.path) from fault
        try:
            self._require_regular(os.fstat(opened))
        except BaseException:
            os.close(opened)
            raise
        return opened

    def open_folder(self) -> int:
        """A descriptor of the folder that is there."""
        try:
            return os.open(self.name, _FOLDER, dir_fd=self.folder)
        except OSError as fault:
            raise fault_of(fault, self.path) from fault

    def _require_regular(self, status: os.stat_result | None) -> None:
        if status is None:
            raise ToolFault("NotFound", f"{self.path} does not exist")
        if stat.S_ISDIR(status.st_mode):
            raise ToolFault("IsDirectory", f"{self.path} is a directory, expected a file")
        if not stat.S_ISREG(status.st_mode):
            raise ToolFault("NotRegular", f"{self.path} is a {_kind(status.st_mode)}, expected a regular file")


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "named pipe"
    if stat.S_ISSOCK(mode):
        return "socket"
    if stat.S_ISLNK(mode):
        return "symbolic link that changed meanwhile"
    return "device"


class Workspace:
    """The one folder that file tools may touch; `path` is what a command sees as its name.

    A command may delete it, or put another folder in its place: `git clone … /sandbox/workspace` after an `rm -rf`.
    Whatever folder has the name is the workspace; a link is not followed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, _FOLDER)

    def open(self) -> int:
        """A descriptor of the workspace as it is now, made if it is gone; the caller closes it."""
        try:
            try:
                now = os.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                os.mkdir(self.path, 0o755)
                now = os.stat(self.path, follow_symlinks=False)
            then = os.fstat(self._fd)
            if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
                fresh = os.open(self.path, _FOLDER)
                os.close(self._fd)
                self._fd = fresh
        except OSError as fault:
            raise fault_of(fault, self.path) from fault
        return os.dup(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def shown(self, path: str) -> str:
        """`path` as results spell it: relative to the workspace, "" for the workspace itself."""
        plain = os.path.normpath(path.removeprefix(self.path).lstrip("/") or ".")
        return "" if plain == "." else plain

    def find(self, path: str, *, make_folders: bool = False) -> Spot:
        """The spot that `path` names. Raises ToolFault: PathEscapes, NotFound, NotDirectory, …

        A path that begins with the workspace's own name is taken as relative to it. With `make_folders`, folders that
        are missing on the way are created.
        """
        if "\0" in path or not path or len(path.encode("utf-8", "replace")) > PATH_LIMIT:
            raise ToolFault("InvalidArguments", f"path: expected 1 to {PATH_LIMIT} bytes without NUL")
        relative = path
        if path.startswith("/"):
            if path != self.path and not path.startswith(self.path + "/"):
                raise _escapes(path, self.path)
            relative = path[len(self.path) :]
        return _Walk(self, path, make_folders).to(relative)


class _Walk:
    """One resolution: the open folders from the workspace down to where we are."""

    def __init__(self, workspace: Workspace, path: str, make_folders: bool) -> None:
        self._workspace, self._path, self._make_folders = workspace, path, make_folders
        self._folders = [workspace.open()]
        self._links = 0

    def to(self, relative: str) -> Spot:
        try:
            name = self._walk(_parts(relative))
            return Spot(self._folders.pop(), name, self._path)
        except OSError as fault:
            raise fault_of(fault, self._path) from fault
        finally:
            for folder in self._folders:
                os.close(folder)

    def _walk(self, left: list[str]) -> str:
        """Walk the components of `left`, which come last first, and return the name of the last one."""
        while left:
            part = left.pop()
            if part == "..":
                if len(self._folders) == 1:
                    raise _escapes(self._path, self._workspace.path)
                os.close(self._folders.pop())
            elif (target := self._link(part)) is not None:
                left += _parts(target)
            elif not left:
                return part
            else:
                self._descend(part)
        return "."

    def _link(self, name: str) -> str | None:
        """Where a symbolic link points; None for anything else, and for nothing."""
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as fault:
            if fault.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise
        self._links += 1
        if self._links > LINK_LIMIT:
            raise ToolFault("TooManyLinks", f"{self._path} goes through more than {LINK_LIMIT} symbolic links")
        if target.startswith("/"):
            if target != self._workspace.path and not target.startswith(self._workspace.path + "/"):
                raise _escapes(self._path, self._workspace.path)
            while len(self._folders) > 1:
                os.close(self._folders.pop())
            return target[len(self._workspace.path) :]
        return target

    def _descend(self, name: str) -> None:
        if self._make_folders:
            try:
                os.mkdir(name, 0o777, dir_fd=self._folders[-1])
            except FileExistsError:
                pass
        self._folders.append(os.open(name, _FOLDER, dir_fd=self._folders[-1]))


def _parts(path: str) -> list[str]:
    """The components, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _escapes(path: str, workspace: str) -> ToolFault:
    return ToolFault("PathEscapes", f"{path} leads out of the workspace; use a path below {workspace}")


_CODES = {
    errno.ENOENT: ("NotFound", "does not exist"),
    errno.ENOTDIR: ("NotDirectory", "has something on its way, or at its end, that is not a directory"),
    errno.EISDIR: ("IsDirectory", "is a directory, expected a file"),
    errno.ELOOP: ("PathEscapes", "changed into a symbolic link meanwhile"),
    errno.EACCES: ("PermissionDenied", "may not be accessed"),
    errno.EPERM: ("PermissionDenied", "may not be changed"),
    errno.EROFS: ("PermissionDenied", "is on a read-only file system"),
    errno.ENAMETOOLONG: ("InvalidArguments", "has a component with too long a name"),
    errno.ENOSPC: ("DiskFull", "does not fit: no space is left in the sandbox"),
    errno.EDQUOT: ("DiskFull", "does not fit: the sandbox's quota is used up"),
    errno.ENXIO: ("NotRegular", "is not a regular file"),
}


def fault_of(fault: OSError, path: str) -> ToolFault:
    """What the model is told about an error of the operating system."""
    code, what = _CODES.get(fault.errno or 0, ("IOError", f"failed: {fault.strerror}"))
    return ToolFault(code, f"{path} {what}")
