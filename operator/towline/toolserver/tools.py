"""The tools by name: checks a call's arguments and runs it. The gateway's schemas say the same (`gateway/tools.py`).

Called by `server.py`. The gateway has checked the arguments already; they are checked again because the two are
deployed apart. Whatever is wrong with them is an answer for the model, never an exception that leaves.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from .beneath import Workspace
from .calls import Call
from .execute import Executor
from .files import edit_file, read_file, write_file
from .result import Result, ToolFault
from .walk import BAD_PATTERN, list_dir, search

EXEC_SECONDS = 120
WALK_SECONDS = 30.0
"""For list_dir and search. Like the one for exec it only stands in for a time that the order does not name."""
EXEC_SECONDS_LIMIT = 3600
"""Of what the model may ask for."""
MATCHES = 100
MATCHES_LIMIT = 1000

ARGUMENT_BYTES = 128 * 1024
"""The kernel's limit for one argument of a program, its NUL included (MAX_ARG_STRLEN)."""


class Arguments:
    """A call's arguments, taken one by one; `end` refuses what nobody took."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._left = dict(values)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._left.pop(name, default)
        if not isinstance(value, str):
            raise _wrong(name, value, "text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _wrong(name, ascii(value), "text without lone surrogates") from None
        return value

    def maybe_text(self, name: str) -> str | None:
        return self.text(name) if self._left.get(name) is not None else None

    def number(self, name: str, most: int) -> int | None:
        """A whole number from 1 to `most`; None when absent."""
        value = self._left.pop(name, None)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise _wrong(name, value, f"a whole number from 1 to {most}")
        return value

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def end(self) -> None:
        if self._left:
            raise ToolFault("InvalidArguments", f"argument {min(self._left)[:100]} is unknown")


def _wrong(name: str, value: Any, expected: str) -> ToolFault:
    seen = "missing" if value is None else f"{str(value)[:100]!r}"
    return ToolFault("InvalidArguments", f"argument {name} is {seen}, expected {expected}")


class Tools:
    """What a tool server can do in one workspace."""

    def __init__(self, workspace: Workspace, executor: Executor) -> None:
        self._workspace, self._executor = workspace, executor
        self._quick: dict[str, Callable[[Arguments], Result]] = {
            "read_file": self._read_file,
            "write_file": self._write_file,
            "edit_file": self._edit_file,
        }
        self._lasting: dict[str, Callable[[Arguments, Call, float | None], Awaitable[Result]]] = {
            "exec": self._exec,
            "list_dir": self._list_dir,
            "search": self._search,
        }

    async def run(self, call: Call, tool: str, arguments: Mapping[str, Any], seconds: float | None) -> Result:
        """Run one call, for `seconds` at most: the order's word, which the model is told. Raises ToolFault."""
        started = time.monotonic()
        given = Arguments(arguments)
        if tool in self._quick:
            result = self._quick[tool](given)
        elif tool in self._lasting:
            result = await self._lasting[tool](given, call, seconds)
        else:
            known = ", ".join((*self._lasting, *self._quick))
            raise ToolFault("UnknownTool", f"there is no tool {tool[:100]} here; known: {known}")
        return replace(result, duration_ms=round((time.monotonic() - started) * 1000))

    async def _exec(self, arguments: Arguments, call: Call, seconds: float | None) -> Result:
        command, cwd = arguments.text("command"), arguments.text("cwd", ".")
        own = arguments.number("timeout_seconds", EXEC_SECONDS_LIMIT)
        arguments.end()
        if "\0" in command or len(command.encode()) >= ARGUMENT_BYTES:
            raise ToolFault(
                "InvalidArguments",
                f"argument command: expected fewer than {ARGUMENT_BYTES} bytes without NUL; put long scripts in files",
            )
        with self._workspace.find(cwd) as spot:
            folder = spot.open_folder()
        try:
            limit = min((each for each in (own, seconds) if each is not None), default=EXEC_SECONDS)
            return await self._executor.command(command, folder, limit, call.cancelled, call.output)
        finally:
            os.close(folder)

    def _read_file(self, arguments: Arguments) -> Result:
        path = arguments.text("path")
        offset, limit = arguments.number("offset", 2**31), arguments.number("limit", 5000)
        arguments.end()
        return read_file(self._workspace, path, offset, limit)

    def _write_file(self, arguments: Arguments) -> Result:
        path, content = arguments.text("path"), arguments.text("content")
        arguments.end()
        return write_file(self._workspace, path, content)

    def _edit_file(self, arguments: Arguments) -> Result:
        path, old, new = arguments.text("path"), arguments.text("old_text"), arguments.text("new_text")
        replace_all = arguments.flag("replace_all")
        arguments.end()
        if not old:
            raise ToolFault("InvalidArguments", "argument old_text is empty, expected the text to replace")
        return edit_file(self._workspace, path, old, new, replace_all)

    async def _list_dir(self, arguments: Arguments, call: Call, seconds: float | None) -> Result:
        path, depth = arguments.text("path", "."), arguments.number("depth", 5) or 1
        arguments.end()
        with self._workspace.find(path) as spot:
            folder = spot.open_folder()
        try:
            return await self._walk(lambda at, output: list_dir(at, depth, output), folder, call, seconds)
        finally:
            os.close(folder)

    async def _search(self, arguments: Arguments, call: Call, seconds: float | None) -> Result:
        pattern, path, glob = arguments.text("pattern"), arguments.text("path", "."), arguments.maybe_text("glob")
        most = arguments.number("max_results", MATCHES_LIMIT) or MATCHES
        arguments.end()
        shown = self._workspace.shown(path)
        with self._workspace.find(path) as spot:
            if spot.status() is None:
                raise ToolFault("NotFound", f"{path} does not exist")
            return await self._walk(
                lambda at, output: search(at, spot.name, shown, pattern, glob, most, output), spot.folder, call, seconds
            )

    async def _walk(self, work: Callable[[int, int], int], folder: int, call: Call, seconds: float | None) -> Result:
        limit = WALK_SECONDS if seconds is None else seconds
        result = await self._executor.worker(work, folder, limit, call.cancelled)
        # A worker's exit status is our own business.
        plain = replace(result, exit_code=None, signal=None)
        if result.outcome != "ok" or result.exit_code == 0:
            return plain
        if result.exit_code == BAD_PATTERN:
            return replace(plain, outcome="error", code="InvalidPattern")
        return replace(plain, outcome="error", code="WorkerFailed", text="The walk through the files broke off.")
