"""Words and figures for people: durations, sizes, money, a tool call and an event on one line. Pure.

Called by `render.py` and `ls.py`. It styles nothing; every text that came from outside is made printable here.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from towline.cli.sanitize import one_line
from towline.events.event import Event

ARGUMENT_CHARACTERS = 100
LINE_CHARACTERS = 160


def duration(milliseconds: float) -> str:
    """`75 ms`, `1.4 s`, `3 min 20 s`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def age(seconds: float) -> str:
    """`12s`, `5m`, `3h`, `4d`, as kubectl prints it."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def money(micro_usd: int) -> str:
    """`$0.0123`: four digits, since a run often costs less than a cent."""
    return f"${micro_usd / 1_000_000:,.4f}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def call_text(name: str, arguments: Any) -> str:
    """A tool call on one line: its name, the argument that says most alone, and the others as JSON."""
    if isinstance(arguments, Mapping):
        rest = dict(arguments)
        first = next((rest.pop(key) for key in ("command", "path", "pattern") if isinstance(rest.get(key), str)), "")
        said = f"{first} {json.dumps(rest, ensure_ascii=False)}" if rest else str(first)
    else:
        said = str(arguments or "")
    return f"{one_line(name, 40)}  {one_line(said, ARGUMENT_CHARACTERS)}".rstrip()


def result_text(data: Mapping[str, Any]) -> str:
    """How a tool call ended, on one line: `exit code 1, 310 ms`, `denied, 1 ms`."""
    parts = [str(data.get("outcome", "unknown"))]
    if parts == ["ok"] and data.get("exit_code") is not None:
        parts = [f"exit code {data['exit_code']}"]
    parts.append(duration(data.get("duration_ms") or 0))
    if data.get("truncated"):
        parts.append(f"shortened from {data.get('total_bytes', 0):,} bytes")
    return ", ".join(parts)


def content_text(data: Mapping[str, Any], kind: str = "text") -> str:
    """All text of a message or a tool result, as it came: not yet printable."""
    content = data.get("content") or []
    return "".join(str(block.get("text", "")) for block in content if block.get("type") == kind)


def _reason(data: Mapping[str, Any]) -> str:
    message = data.get("message") or ""
    return f"{data.get('reason', '')}: {message}" if message else str(data.get("reason", ""))


def _usage(data: Mapping[str, Any]) -> str:
    usage = data.get("usage") or {}
    text = f"{data.get('model', '')}  {usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out"
    text += f", {duration(data.get('duration_ms') or 0)}"
    return text + (f"  {data['error']}" if data.get("error") else "")


_SUMMARIES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "run.started": lambda d: str(d.get("name", "")),
    "user.message": lambda d: str(d.get("content", "")),
    "agent.message": content_text,
    "agent.message_aborted": _reason,
    "agent.tool_use": lambda d: call_text(str(d.get("name", "")), d.get("input")),
    "agent.tool_result": lambda d: f"{d.get('name', '')}  {result_text(d)}: {content_text(d)[:LINE_CHARACTERS]}",
    "span.model_request_start": lambda d: str(d.get("model", "")),
    "span.model_request_end": _usage,
    "turn.retrying": lambda d: f"attempt {d.get('attempt')} in {d.get('delay_seconds')} s: {d.get('reason')}",
    "turn.waiting": lambda d: f"for a {d.get('on', '')}",
    "turn.completed": lambda d: str(d.get("stop_reason", "")),
    "sandbox.ready": lambda d: f"{d.get('name', '')}  {d.get('provider', '')}, {d.get('start', '')}, {d.get('ms')} ms",
    "sandbox.lost": _reason,
    "harness.lost": _reason,
    "policy.denied": lambda d: f"{d.get('name', '')}  {d.get('message', '')}",
    "run.completed": lambda d: str((d.get("result") or {}).get("text", "")),
    "run.failed": _reason,
    "run.cancelled": _reason,
}


def event_line(event: Event) -> str:
    """One event on one line: seq, time of day, type, and what matters of its data (all of it for an unknown type)."""
    data = event.payload
    known = _SUMMARIES.get(event.type)
    summary = known(data) if known else (json.dumps(data, ensure_ascii=False) if data else "")
    head = f"{event.seq:>5}  {one_line(event.time[11:23], 12)}  {one_line(event.type, 30):<24}"
    return f"{head}  {one_line(summary, LINE_CHARACTERS)}".rstrip()
