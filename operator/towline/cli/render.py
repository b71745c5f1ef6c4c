"""Shows a run on a terminal: text as it streams, tool calls, sandbox starts, retries, the result and what it cost.

Called by `run` and `tail` through the `Viewer` protocol; `lines.py` has the viewers for everything that is no terminal.
It writes only what `sanitize` passed, plus its own colours.
"""

from collections.abc import Mapping
from typing import Any, TextIO

from towline.cli.sanitize import one_line, printable
from towline.cli.tally import Figures, Tally, figures_of
from towline.cli.text import call_text, content_text, duration, event_line, money, plural, result_text
from towline.events.event import TERMINAL_TYPES, Event

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
MARK = "› "  # before a prompt
OWN_PROMPT_ID = "0-0"
OUTPUT_LINES = 12  # of one call's live output; the model gets more, a person has `towline tail --json`
LINE_CHARACTERS = 200
QUIET = frozenset(
    {
        "run.status",
        "harness.started",
        "harness.sealed",
        "turn.started",
        "turn.completed",
        "user.message",
        "agent.message_start",
        "span.model_request_start",
        "span.model_request_end",
        "sandbox.requested",
        "sandbox.deleted",
        "sandbox.suspended",
    }
)
"""Told only with --verbose: true, and in the way of the story."""


class Terminal:
    """Draws a run as text that only ever grows: nothing is overwritten, so scrolling back shows everything."""

    wants_deltas = True

    def __init__(self, out: TextIO, *, color: bool, verbose: bool = False, ask: str = "", typing: bool = False) -> None:
        self._out, self._color, self._verbose = out, color, verbose
        self._ask, self._typing = ask, typing
        self._asking = False
        """The mark for what is typed stands at the end."""
        self._typed: list[str] = []
        """Prompts that stand on the screen already."""
        self._tally = Tally()
        self._at_line_start = True
        self._streamed: dict[str, str] = {}
        """Raw text received so far of each open message and call."""
        self._output_lines: dict[str, int] = {}
        self._said = ""

    def note(self, text: str) -> None:
        asking = self._asking
        self._line(one_line(text, LINE_CHARACTERS), DIM)
        if asking:
            self._mark()

    def typed(self, text: str | None) -> None:
        self._typing = self._typing and text is not None
        if not self._asking:
            return  # it stands amid what the agent says: its event will show it in its place
        self._asking, self._at_line_start = False, text is not None
        if text:
            self._typed.append(text)
        elif text is not None:
            self._mark()

    def delta(self, delta: Mapping[str, Any]) -> None:
        text = str(delta.get("text", ""))
        if delta.get("kind") == "text":
            self._stream(str(delta.get("message_id")), text, int(delta.get("offset", 0)))
        elif delta.get("kind") == "tool_output":
            self._output(str(delta.get("call_id")), text, int(delta.get("offset", 0)))
        elif delta.get("kind") == "thinking" and self._verbose:
            self._write(text, DIM)

    def event(self, event: Event) -> None:
        self._tally.add(event)
        data = event.payload
        match event.type:
            case "run.started":
                self._line(f"{one_line(str(data.get('name', '')), 63)}  {event.run.uid}", BOLD)
            case "user.message" if data.get("prompt_id") != OWN_PROMPT_ID:
                self._prompt(data)
            case "turn.waiting":
                how = f"type it here, or: {self._ask}" if self._typing else self._ask
                self._line(f"waiting for a prompt: {how}", DIM)
                if self._typing:
                    self._mark()
            case "harness.resumed":
                self._line(f"  resumed behind event {data.get('from_seq')}", DIM)
            case "agent.message":
                self._message(data)
            case "agent.message_aborted":
                self._fresh_line()
                self._line(f"answer broken off: {one_line(str(data.get('reason', '')), LINE_CHARACTERS)}", YELLOW)
            case "agent.tool_use":
                self._line(f"→ {call_text(str(data.get('name', '')), data.get('input'))}", CYAN)
            case "agent.tool_result":
                self._result(data)
            case "sandbox.ready":
                start = f"{data.get('provider', '')}, {data.get('start', '')}, {duration(data.get('ms') or 0)}"
                self._line(f"  sandbox ready ({one_line(start, 80)})", DIM)
            case "sandbox.lost" | "harness.lost":
                self._line(f"{event.type.replace('.', ' ')}: {_reason(data)}", YELLOW)
            case "turn.retrying":
                self._line(f"  retry {data.get('attempt')} in {data.get('delay_seconds')} s: {_reason(data)}", YELLOW)
            case kind if kind in TERMINAL_TYPES:
                self._end(kind, data)
            case kind if kind not in QUIET or self._verbose:
                self._line(event_line(event), DIM)

    # -- what a message and a call look like -------------------------------------------------------------------------

    def _prompt(self, data: Mapping[str, Any]) -> None:
        """One from the inbox: the run's own stands in its manifest."""
        text = str(data.get("content", ""))
        if text in self._typed:
            self._typed.remove(text)
        else:
            delivery = str(data.get("delivery") or "queue")
            how = "" if delivery == "queue" else f"  ({one_line(delivery, 20)})"
            said = f"{one_line(text, LINE_CHARACTERS)}{how}"
            if self._asking:  # behind the mark that stands there
                self._write(said + "\n", BOLD)
            else:
                self._line(MARK + said, BOLD)

    def _mark(self) -> None:
        self._fresh_line()
        self._write(MARK, BOLD)
        self._asking = True

    def _stream(self, message_id: str, text: str, offset: int) -> None:
        shown = self._streamed.setdefault(message_id, "")
        if offset > len(shown):
            return  # a piece in between was lost: the message itself brings the rest
        new = text[len(shown) - offset :]
        self._streamed[message_id] = shown + new
        self._write(new)

    def _message(self, data: Mapping[str, Any]) -> None:
        text = content_text(data)
        shown = self._streamed.pop(str(data.get("message_id")), "")
        if text.startswith(shown):
            self._write(text[len(shown) :])
        else:  # the message wins over its deltas
            self._fresh_line()
            self._write(text)
        self._fresh_line()
        self._said = text.strip() or self._said

    def _output(self, call_id: str, text: str, offset: int) -> None:
        """Whole lines of a command's output, the first few of them."""
        shown = self._streamed.setdefault(call_id, "")
        if offset > len(shown):
            return
        self._streamed[call_id] = whole = shown + text[len(shown) - offset :]
        *lines, _ = whole[shown.rfind("\n") + 1 :].split("\n")
        for line in lines:
            self._output_line(call_id, line)

    def _output_line(self, call_id: str, line: str) -> None:
        count = self._output_lines[call_id] = self._output_lines.get(call_id, 0) + 1
        if count <= OUTPUT_LINES:
            self._line(f"  │ {one_line_keeping_indent(line)}".rstrip(), DIM)
        elif count == OUTPUT_LINES + 1:
            self._line("  │ …", DIM)

    def _result(self, data: Mapping[str, Any]) -> None:
        call_id, failed = str(data.get("call_id")), data.get("outcome") != "ok"
        shown, text = self._streamed.get(call_id, ""), content_text(data)
        if data.get("name") == "exec" and not failed and text.startswith(shown):
            self._output(call_id, text[len(shown) :], len(shown))  # what no delta brought
        if rest := self._streamed.pop(call_id, "").rpartition("\n")[2]:
            self._output_line(call_id, rest)
        self._output_lines.pop(call_id, None)
        mark, style = ("✗", RED) if failed else ("✗", YELLOW) if data.get("exit_code") else ("✓", GREEN)
        self._line(f"  {mark} {one_line(result_text(data), 80)}", style)
        if failed:
            self._line(f"    {one_line(content_text(data), LINE_CHARACTERS)}", style)

    def _end(self, kind: str, data: Mapping[str, Any]) -> None:
        self._fresh_line()
        if kind == "run.completed":
            text = str((data.get("result") or {}).get("text", ""))
            if text.strip() != self._said:
                self._write(text)
                self._fresh_line()
            self._line("✓ succeeded", GREEN)
        elif kind == "run.failed":
            self._line(f"✗ failed: {_reason(data)}", RED)
        else:
            self._line(f"✗ cancelled: {_reason(data)}", YELLOW)
        figures = figures_of(data) if kind == "run.completed" else self._tally.figures
        if used := usage_line(figures, self._tally.milliseconds):
            self._line("  " + used, DIM)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _line(self, text: str, style: str = "") -> None:
        self._fresh_line()
        self._write(text + "\n", style)

    def _fresh_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str, style: str = "") -> None:
        """The one way out: whatever an event said, no terminal gets to obey it."""
        text = printable(text)
        if not text:
            return
        self._asking = False
        self._at_line_start = text.endswith("\n")
        if self._color and style:
            body = text.removesuffix("\n")
            text = f"\x1b[{style}m{body}\x1b[0m" + text[len(body) :]
        self._out.write(text)
        self._out.flush()


def one_line_keeping_indent(line: str) -> str:
    """A line of output with the indent that code and tracebacks live by."""
    clean = printable(line.rstrip("\r")).expandtabs(4).rstrip()
    indent = len(clean) - len(clean.lstrip(" "))
    return " " * min(indent, 40) + one_line(clean, LINE_CHARACTERS)


def usage_line(figures: Figures | None, milliseconds: float | None) -> str:
    """`3 turns, 7 tool calls, 1,234 tokens in, 567 out, $0.0012, 4.2 s`; of what is not known, nothing."""
    parts = []
    if figures is not None:
        parts += [
            plural(figures.turns, "turn"),
            plural(figures.tool_calls, "tool call"),
            f"{plural(figures.input_tokens, 'token')} in, {figures.output_tokens:,} out",
        ]
        if figures.cost_micro_usd:
            parts.append(money(figures.cost_micro_usd))
    if milliseconds is not None:
        parts.append(duration(milliseconds))
    return ", ".join(parts)


def _reason(data: Mapping[str, Any]) -> str:
    reason, message = str(data.get("reason", "")), str(data.get("message") or "")
    return one_line(f"{reason}: {message}" if message else reason, LINE_CHARACTERS)
