"""The tools a model may be offered: names, descriptions, argument schemas. Static; no sandbox is asked.

`offered` picks a run's tools from its snapshot, `problem` checks a call's arguments. What the tools do lives in the
tool server; both sides agree on these arguments.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from towline.api.snapshot import Snapshot

MAX_RESULT_META = "anthropic/maxResultSizeChars"
"""Claude Code swaps a longer result for a file in the harness' own pod, where no tool of ours can read it."""

MAX_RESULT_CHARACTERS = 100_000
"""Above our own bound of 40,000, so that no client shortens what we already shortened."""

FILE_TOOL_SECONDS = 30
"""Bound on every tool but exec: reading or searching a workspace is quick, or stuck."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as the model sees it; `schema` is JSON Schema 2020-12 with a closed set of properties."""

    name: str
    description: str
    schema: dict[str, Any]
    validator: Draft202012Validator

    def listing(self) -> dict[str, Any]:
        """The entry of an MCP `tools/list` answer."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.schema,
            "_meta": {MAX_RESULT_META: MAX_RESULT_CHARACTERS},
        }


def _tool(name: str, description: str, required: Iterable[str], **properties: dict[str, Any]) -> Tool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    Draft202012Validator.check_schema(schema)
    return Tool(name, description, schema, Draft202012Validator(schema))


def _path(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": 4096, "description": description}


_TEXT = {"type": "string", "maxLength": 3_000_000}
"""Below the 4 MiB of a request body, JSON escapes included for usual text."""

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        _tool(
            "exec",
            "Run a shell command in the workspace and return its output (stdout and stderr together). The command gets "
            "no input and no terminal. Processes it leaves behind are killed when it ends. Long output keeps its "
            "beginning and end. A non-zero exit code is shown after the output.",
            ["command"],
            command={"type": "string", "minLength": 1, "maxLength": 131_072, "description": "Command line for sh -c."},
            timeout_seconds={
                "type": "integer",
                "minimum": 1,
                "maximum": 3600,
                "description": "Seconds after which the command is killed; 120 unless the run sets another default.",
            },
            cwd=_path("Folder to run in, relative to the workspace; the workspace itself unless given."),
        ),
        _tool(
            "read_file",
            "Read a text file of the workspace. Give offset and limit to read a part of a long file.",
            ["path"],
            path=_path("File, relative to the workspace."),
            offset={"type": "integer", "minimum": 1, "description": "First line to return; lines count from 1."},
            limit={"type": "integer", "minimum": 1, "maximum": 5000, "description": "How many lines to return."},
        ),
        _tool(
            "write_file",
            "Create or replace a file of the workspace with the given content. Missing folders are created.",
            ["path", "content"],
            path=_path("File, relative to the workspace."),
            content={**_TEXT, "description": "The whole new content."},
        ),
        _tool(
            "edit_file",
            "Replace a piece of text in a file of the workspace. old_text must occur exactly once, unless replace_all "
            "is true.",
            ["path", "old_text", "new_text"],
            path=_path("File, relative to the workspace."),
            old_text={**_TEXT, "minLength": 1, "description": "Text to find, exactly as in the file."},
            new_text={**_TEXT, "description": "Text to put in its place."},
            replace_all={"type": "boolean", "description": "Replace every occurrence; false unless given."},
        ),
        _tool(
            "list_dir",
            "List a folder of the workspace.",
            [],
            path=_path("Folder, relative to the workspace; the workspace itself unless given."),
            depth={"type": "integer", "minimum": 1, "maximum": 5, "description": "How many levels; 1 unless given."},
        ),
        _tool(
            "search",
            "Search the text files of the workspace for a regular expression; returns file, line number and line.",
            ["pattern"],
            pattern={"type": "string", "minLength": 1, "maxLength": 4096, "description": "Regular expression."},
            path=_path("File or folder to search, relative to the workspace; all of it unless given."),
            glob={"type": "string", "minLength": 1, "maxLength": 4096, "description": "File names, such as *.py."},
            max_results={"type": "integer", "minimum": 1, "maximum": 1000, "description": "Stop after so many lines."},
        ),
    )
}


def offered(snapshot: Snapshot) -> dict[str, Tool]:
    """The run's tools in the order the model sees them; a name that this gateway does not serve is left out."""
    return {name: TOOLS[name] for name in snapshot.tools if name in TOOLS}


def problem(tool: Tool, arguments: dict[str, Any]) -> str | None:
    """What is wrong with the arguments, for the model to read: argument, value, expectation. None when all is well."""
    faults = sorted(tool.validator.iter_errors(arguments), key=lambda fault: str(fault.json_path))
    return "; ".join(_sentence(tool, fault) for fault in faults[:5]) or None


def whole_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with 5.0 as 5: one number in JSON and for a schema, but not for every reader of it."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in arguments.items()
    }


def seconds_allowed(tool: str, arguments: dict[str, Any], exec_timeout_seconds: int) -> int:
    """How long the tool server lets this call run: the order names it, and the model is told when it was reached."""
    if tool != "exec":
        return FILE_TOOL_SECONDS
    return int(arguments.get("timeout_seconds", exec_timeout_seconds))


_TYPES = {"integer": "a whole number", "string": "a text", "boolean": "true or false", "object": "an object"}


def _sentence(tool: Tool, fault: ValidationError) -> str:
    rule, wanted, instance = str(fault.validator), cast(Any, fault.validator_value), cast(Any, fault.instance)
    known: list[str] = list(tool.schema["properties"])
    if rule == "required":
        missing = next(name for name in wanted if name not in instance)
        return f"argument {missing} is missing: {tool.name} needs {', '.join(wanted)}"
    if rule == "additionalProperties":
        extra = next(name for name in instance if name not in known)
        return f"argument {extra[:100]} is unknown: {tool.name} takes {', '.join(known)}"
    name = ".".join(str(part) for part in fault.absolute_path)
    seen = json.dumps(instance, ensure_ascii=False)
    seen = seen if len(seen) <= 100 else seen[:100] + "…"
    expected = {
        "type": _TYPES.get(str(wanted), str(wanted)),
        "minimum": f"at least {wanted}",
        "maximum": f"at most {wanted}",
        "minLength": f"at least {wanted} characters",
        "maxLength": f"at most {wanted} characters",
    }[rule]
    return f"argument {name} is {seen}: expected {expected}"
