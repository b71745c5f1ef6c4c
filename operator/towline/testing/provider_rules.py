"""What providers demand of a conversation, as checks on a request's body: one list of broken rules for each format.

Used by the scripted server, which refuses what a provider would refuse, and by property tests of the history. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


def anthropic_problems(body: Mapping[str, Any]) -> list[str]:
    """Rules of the Messages API: alternating roles, each tool use answered by exactly the next message, and so on."""
    blank = ["system: text must hold more than white space"] * any(map(_blank, body.get("system", ())))
    return [*blank, *_tool_choice(body), *_anthropic(body["messages"])]


def _blank(block: Mapping[str, Any]) -> bool:
    return block["type"] == "text" and not block["text"].strip()


def _anthropic(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
        yield "the conversation must begin and end with the user"
    seen: set[str] = set()
    open_ids: list[str] = []
    for position, message in enumerate(messages):
        where = f"messages.{position}"
        if position and message["role"] == messages[position - 1]["role"]:
            yield f"{where}: roles must alternate"
        content = message["content"]
        if not content:
            yield f"{where}: content must not be empty"
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if sorted(results) != sorted(open_ids):
            yield f"{where}: tool results {results} do not answer tool uses {open_ids}"
        if results and any(block["type"] == "tool_result" for block in content[len(results) :]):
            yield f"{where}: tool results must come first"
        open_ids = []
        for block in content:
            if any(map(_blank, [block, *block.get("content", ())])):
                yield f"{where}: text must hold more than white space"
            if block.get("is_error") and not block.get("content"):
                yield f"{where}: a tool result that is an error needs content"
            if block["type"] == "tool_use":
                yield from _call(where, block["id"], block["name"], seen)
                open_ids.append(block["id"])
                if not isinstance(block["input"], dict):
                    yield f"{where}: the input of a tool use must be an object"
    if open_ids:
        yield f"tool uses {open_ids} have no result"


def openai_problems(body: Mapping[str, Any]) -> list[str]:
    """Rules of Chat Completions: each tool call answered by one tool message before anything else."""
    return [*_tool_choice(body), *_openai([message for message in body["messages"] if message["role"] != "system"])]


def _openai(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not messages or messages[0]["role"] != "user" or messages[-1]["role"] == "assistant":
        yield "the conversation must begin with the user and not end with the assistant"
    seen: set[str] = set()
    open_ids: list[str] = []
    for position, message in enumerate(messages):
        where = f"messages.{position}"
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                yield f"{where}: no tool call {message['tool_call_id']} is open"
            else:
                open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            yield f"{where}: tool calls {open_ids} have no result"
            open_ids = []
        calls = message.get("tool_calls") or []
        if message["role"] == "assistant" and not calls and not message["content"]:
            yield f"{where}: an assistant message needs content or tool calls"
        for call in calls:
            yield from _call(where, call["id"], call["function"]["name"], seen)
            open_ids.append(call["id"])
    if open_ids:
        yield f"tool calls {open_ids} have no result"


def _tool_choice(body: Mapping[str, Any]) -> list[str]:
    return ["tool_choice: only allowed beside tools"] * ("tool_choice" in body and not body.get("tools"))


def _call(where: str, call_id: str, name: str, seen: set[str]) -> Iterator[str]:
    if not CALL_ID.fullmatch(call_id):
        yield f"{where}: {call_id!r} is no call id"
    if not NAME.fullmatch(name):
        yield f"{where}: {name!r} is no tool name"
    if call_id in seen:
        yield f"{where}: call id {call_id} is used twice"
    seen.add(call_id)
