"""From what happened to a call to the text the model reads and the data of its `agent.tool_result`. Pure.

`calls.py` uses it for every outcome. Everything a sandbox says comes in as a `Reply` whose fields `sandbox_client.py`
has checked; here it is bounded once more, because one event has to stay one event.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from towline.gateway.exchange import ToolAnswer

Outcome = Literal["ok", "error", "denied", "cancelled", "unknown"]

MAX_TEXT_CHARACTERS = 40_000
"""Longer results are swapped for a file by some CLI harnesses (measured at 50,000)."""

MAX_EVENT_BYTES = 60 * 1024
"""Of the encoded data; above 64 KiB an event goes to a key of its own, which every reader then has to fetch."""

_ENVELOPE_BYTES = 1024
"""The data's other fields, with room to spare."""

RESET_NOTE = "[A new sandbox was started: the workspace began again with its initial files only.]"
"""Before the first recorded result out of every sandbox but a run's first, unless its workspace was kept. At least
once: results that come at the same moment may each say it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool server's result, types and bounds checked, contents not believed."""

    outcome: Literal["ok", "error", "cancelled"]
    text: str
    total_bytes: int = 0
    truncated: bool = False
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    killed: int = 0
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What there is to record of a call: its outcome and what the model is told."""

    outcome: Outcome
    text: str
    truncated: bool = False
    total_bytes: int = 0
    exit_code: int | None = None
    new_sandbox: str = ""
    """The sandbox of which it tells that the workspace began anew."""

    def data(self, call_id: str, name: str, duration_ms: int) -> dict[str, Any]:
        """The data of the call's `agent.tool_result`; within MAX_EVENT_BYTES when encoded."""
        text = bounded(self.text)
        return {
            "call_id": call_id,
            "name": name,
            "outcome": self.outcome,
            "is_error": self.outcome != "ok",
            "content": [{"type": "text", "text": text}],
            "duration_ms": duration_ms,
            "truncated": self.truncated or text is not self.text,
            "total_bytes": self.total_bytes,
            "exit_code": self.exit_code,
        }


def answer(data: dict[str, Any], record: dict[str, Any] | None) -> ToolAnswer:
    """What the caller gets for a recorded result."""
    return ToolAnswer(data["call_id"], data["outcome"], data["content"][0]["text"], data["truncated"], record)


def from_reply(reply: Reply, *, timeout_seconds: int, new_sandbox: str = "") -> Finding:
    """The tool server's result with its footers: what a person would see around the output in a terminal.

    `new_sandbox` is the one it came out of, while the model does not know that the workspace in it began anew.
    """
    footers = []
    if reply.truncated:
        footers.append(f"[{reply.total_bytes} bytes, middle omitted]")
    if reply.timed_out:
        footers.append(f"[timed out after {timeout_seconds} s]")
    elif reply.outcome == "cancelled":
        footers.append("[cancelled]")
    elif reply.signal is not None:
        footers.append(f"[killed by signal {reply.signal}]")
    elif reply.exit_code:
        footers.append(f"[exit code {reply.exit_code}]")
    if reply.killed:
        footers.append(f"[{reply.killed} left-over processes killed]")
    if not reply.text and not footers:
        footers.append("[empty]" if reply.exit_code is None else "[no output]")
    head = f"{RESET_NOTE}\n" if new_sandbox else ""
    foot = "\n".join(footers)
    room = MAX_TEXT_CHARACTERS - len(head) - len(foot) - 1
    body = middle_out(reply.text, room)
    seam = "\n" if body and foot and not body.endswith("\n") else ""
    return Finding(
        reply.outcome,
        f"{head}{body}{seam}{foot}",
        truncated=reply.truncated or body is not reply.text,
        total_bytes=reply.total_bytes,
        exit_code=reply.exit_code,
        new_sandbox=new_sandbox,
    )


def bounded(text: str) -> str:
    """The text itself when it fits into an event, else its beginning and end."""
    text = middle_out(text, MAX_TEXT_CHARACTERS)
    room = MAX_EVENT_BYTES - _ENVELOPE_BYTES
    if len(text) * 6 <= room:  # the longest JSON escape of one character
        return text
    while (size := _encoded_bytes(text)) > room:
        # Escapes may be spread unevenly, so aim a little low and look again.
        text = middle_out(text, int(len(text) * room / size * 0.98))
    return text


def middle_out(text: str, characters: int) -> str:
    """At most so many characters: beginning and end, with a line that says how much is missing between."""
    if len(text) <= characters:
        return text
    marker = f"\n[… {len(text)} characters, middle omitted …]\n"
    keep = max(characters - len(marker), 2)
    head = keep // 2
    return text[:head] + marker + text[len(text) - (keep - head) :]


def _encoded_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())


def unknown_tool(name: str, offered: list[str]) -> Finding:
    """There is no such tool; the names that exist are the most useful thing to say."""
    return Finding("error", f"There is no tool named {name}. Available: {', '.join(offered) or 'none'}.")


def broken_arguments(name: str, problem: str) -> Finding:
    """The call was not made; the model may repair and repeat it."""
    return Finding("error", f"The call of {name} was not made: {problem}.")


def denied(name: str, rule: str) -> Finding:
    """The run's policy forbids the tool; no repeat will change that."""
    return Finding("denied", f"The policy of this run does not allow {name} ({rule}). Do not try again.")


def no_sandbox(name: str) -> Finding:
    """The run is configured without a sandbox."""
    return Finding("error", f"This run has no sandbox (sandbox policy Never), so {name} cannot be called.")


def not_started(reason: str, message: str) -> Finding:
    """Nothing was executed: the sandbox did not come up, or refused the call before running it."""
    return Finding("error", f"The call was not executed: {message} ({reason}).")


def cancelled(executed: bool) -> Finding:
    """Cancelled by the run; `executed` tells whether the command may have begun."""
    return Finding("cancelled", "[cancelled]" if executed else "[cancelled before it began]")


def unknown(reason: str, message: str, *, workspace_kept: bool = False) -> Finding:
    """The sandbox had the call and is gone, or does not answer as it should. Never retried, always said."""
    workspace = "is kept, but nothing that ran in it" if workspace_kept else "may have been reset"
    return Finding(
        "unknown",
        f"The outcome of this call is unknown: {message} ({reason}). The command may or may not have taken effect, and "
        f"the workspace {workspace}. Check before you rely on it or repeat it.",
    )
