"""What a person sees of a run."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.events import RUN, STORY, event
from towline.cli.lines import JsonLines, PlainLines
from towline.cli.render import Terminal
from towline.events.event import Event


def shown(*things: object, color: bool = False, verbose: bool = False) -> str:
    """What a terminal shows of events and (as dicts) deltas."""
    out = io.StringIO()
    terminal = Terminal(out, color=color, verbose=verbose)
    for thing in things:
        if isinstance(thing, dict):
            terminal.delta(thing)
        else:
            terminal.event(thing)  # type: ignore[arg-type]
    return out.getvalue()


def asked(prompt_id: str, content: str, delivery: str = "queue") -> Event:
    data = {"prompt_id": prompt_id, "content": content, "delivery": delivery, "sender": ""}
    return event(5, "user.message", data)


WAITING = event(6, "turn.waiting", {"on": "prompt"})
ASK = 'towline prompt chat "…"'


def at_a_terminal(*things: object) -> str:
    """What stands on a terminal where one may type: events, notes (strings), and typed lines (in a list, or None)."""
    out = io.StringIO()
    terminal = Terminal(out, color=False, ask=ASK, typing=True)
    for thing in things:
        if isinstance(thing, str):
            terminal.note(thing)
        elif isinstance(thing, Event):
            terminal.event(thing)
        else:
            line = thing[0] if isinstance(thing, list) else None
            out.write(f"{line}\n" if line is not None else "")  # the terminal's own echo
            terminal.typed(line)
    return out.getvalue()


def test_a_run_that_waits_tells_the_next_command() -> None:
    out = io.StringIO()
    Terminal(out, color=False, ask=ASK).event(WAITING)
    PlainLines(out, ASK).event(WAITING)
    assert out.getvalue() == (
        f"waiting for a prompt: {ASK}\n"
        "    6  12:00:00.000  turn.waiting              for a prompt\n"
        f"       waiting for a prompt: {ASK}\n"
    )


def test_prompts_from_elsewhere_are_shown_and_the_runs_own_is_not() -> None:
    assert shown(asked("0-0", "Mine."), asked("1-0", "Yours.\nAll of it."), asked("2-0", "Now!", "interrupt")) == (
        "› Yours. All of it.\n› Now!  (interrupt)\n"
    )


def test_what_is_typed_after_the_mark_is_not_shown_twice() -> None:
    assert at_a_terminal(WAITING, ["Hello."], asked("1-0", "Hello."), message("Hi.")) == (
        f"waiting for a prompt: type it here, or: {ASK}\n› Hello.\nHi.\n"
    )


def test_a_prompt_from_elsewhere_takes_the_mark_that_stands_there() -> None:
    assert at_a_terminal(WAITING, asked("1-0", "Hello."), message("Hi.")) == (
        f"waiting for a prompt: type it here, or: {ASK}\n› Hello.\nHi.\n"
    )


def test_what_is_typed_amid_an_answer_is_shown_in_its_place() -> None:
    assert at_a_terminal(["Hello."], message("Hi."), asked("1-0", "Hello.")) == "Hello.\nHi.\n› Hello.\n"


def test_the_mark_comes_again_behind_a_note_and_an_empty_line_until_nothing_more_is_typed() -> None:
    assert at_a_terminal(WAITING, "asleep", [""], None, "no more prompts", message("Bye.")) == (
        f"waiting for a prompt: type it here, or: {ASK}\n› \nasleep\n› \n› \nno more prompts\nBye.\n"
    )


def text_delta(text: str, offset: int, message_id: str = "m1") -> dict[str, object]:
    return {"kind": "text", "message_id": message_id, "offset": offset, "text": text}


def message(text: str) -> object:
    return event(3, "agent.message", {"message_id": "m1", "content": [{"type": "text", "text": text}]})


def test_a_run_reads_as_a_story() -> None:
    assert shown(*STORY) == (
        f"fix-a-bug  {RUN.uid}\n"
        "I will run the tests.\n"
        '→ exec  pytest -q {"timeout_seconds": 60}\n'
        "  sandbox ready (local, cold, 75 ms)\n"
        "  │ 1 failed\n"
        "  ✗ exit code 1, 310 ms\n"
        "  ✗ error, 2 ms\n"
        "    path /etc/passwd leaves the workspace\n"
        "  retry 2 in 1.5 s: overloaded\n"
        "harness lost: Killed\n"
        "Done.\n"
        "✓ succeeded\n"
        "  1 turn, 1 tool call, 1,200 tokens in, 34 out, $0.0015, 1.5 s\n"
    )


def test_the_figures_are_the_runs_own_wherever_the_showing_began() -> None:
    assert shown(*STORY[15:]).endswith("✓ succeeded\n  1 turn, 1 tool call, 1,200 tokens in, 34 out, $0.0015\n")


def ended(seq: int) -> Event:
    return event(seq, "run.failed", {"reason": "Lost", "message": ""}, seconds=2.0)


def test_a_run_that_failed_has_the_figures_that_were_counted_from_its_first_event_on() -> None:
    assert shown(*STORY[:19], ended(20)).endswith("  1 turn, 1 tool call, 1,200 tokens in, 34 out, $0.0015, 2.0 s\n")


def test_what_was_counted_from_the_middle_is_not_told() -> None:
    assert shown(*STORY[15:19], ended(20)).endswith("✗ failed: Lost\n")


def test_what_was_counted_twice_because_the_store_lost_it_is_not_told() -> None:
    assert shown(*STORY[:19], *STORY[8:19], ended(20)).endswith("✗ failed: Lost\n  2.0 s\n")


def test_verbose_tells_every_event() -> None:
    text = shown(*STORY, verbose=True)
    for each in ("harness.sealed", "turn.started", "user.message", "span.model_request_end", "sandbox.requested"):
        assert each in text


def test_plain_lines_are_one_line_an_event_without_escape_codes() -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    for each in STORY:
        lines.event(each)
    text = out.getvalue()
    assert text.count("\n") == len(STORY)
    assert "\x1b" not in text
    assert [line.split()[2] for line in text.splitlines()] == [each.type for each in STORY]
    assert "   10  12:00:00.500  agent.tool_use            exec pytest -q" in text


def test_json_lines_are_the_events_and_nothing_else() -> None:
    out = io.BytesIO()
    lines = JsonLines(out)
    lines.note("building")
    for each in STORY:
        lines.event(each)
    assert out.getvalue() == b"".join(each.line() + b"\n" for each in STORY)
    assert [json.loads(line)["seq"] for line in out.getvalue().splitlines()] == list(range(1, len(STORY) + 1))


def test_streamed_text_is_not_shown_again_by_the_final_message() -> None:
    assert shown(text_delta("Hello ", 0), text_delta("world", 6), message("Hello world")) == "Hello world\n"


def test_the_final_message_brings_what_no_delta_brought() -> None:
    assert shown(text_delta("Hello ", 0), message("Hello world")) == "Hello world\n"
    assert shown(message("Hello world")) == "Hello world\n"


def test_a_repeated_delta_is_shown_once() -> None:
    assert shown(text_delta("Hello ", 0), text_delta("Hello ", 0), text_delta("lo world", 3)) == "Hello world"


def test_a_lost_delta_leaves_no_hole() -> None:
    assert shown(text_delta("Hello ", 0), text_delta("ld", 9), message("Hello world")) == "Hello world\n"


def test_the_final_message_wins_over_its_deltas() -> None:
    assert shown(text_delta("Goodbye", 0), message("Hello")) == "Goodbye\nHello\n"


@given(st.text(), st.lists(st.integers(1, 5)))
def test_whatever_way_a_text_is_cut_it_is_shown_whole(text: str, sizes: list[int]) -> None:
    deltas, at = [], 0
    for size in sizes:
        deltas.append(text_delta(text[at : at + size], at))
        at += size
    # Cleaned piece by piece: an escape sequence cut in two loses its introducer and shows its body.
    out = shown(*deltas, message(text))
    assert "\x1b" not in out
    if text.isascii() and text.isprintable():
        assert out.rstrip("\n") == text


def test_hostile_text_reaches_no_terminal_wherever_it_stands() -> None:
    evil = "\x1b]52;c;AAAA\x07\x1b[2J\u202e"
    data = {
        "name": evil,
        "message_id": "m1",
        "call_id": evil,
        "content": [{"type": "text", "text": evil}],
        "input": {"command": evil, evil: evil},
        "outcome": evil,
        "reason": evil,
        "message": evil,
        "provider": evil,
        "start": evil,
        "ms": 1,
        "attempt": evil,
        "delay_seconds": evil,
        "result": {"text": evil},
        "exit_code": evil,
        "total_bytes": 1,
        "duration_ms": 1,
        "truncated": True,
        "model": evil,
        "error": evil,
        "stop_reason": evil,
        "digest": evil,
        "usage": {},
        "prompt_ids": [evil],
    }
    types = {each.type for each in STORY} | {"agent.message_aborted", "run.failed", "run.cancelled", "odd.unknown"}
    for kind in sorted(types):
        for verbose in (False, True):
            assert not {"\x1b", "\u202e", "\x07"} & set(shown(event(1, kind, data), verbose=verbose)), kind
        out = io.StringIO()
        PlainLines(out).event(event(1, kind, data))
        assert not {"\x1b", "\u202e", "\x07"} & set(out.getvalue()), kind
        assert out.getvalue().count("\n") == 1, kind
    for kind in ("text", "thinking", "tool_output", "tool_input"):
        delta = {"kind": kind, "message_id": "m1", "call_id": "c", "offset": 0, "text": evil + "\n"}
        assert not {"\x1b", "\u202e", "\x07"} & set(shown(delta, verbose=True)), kind


def output(text: str, offset: int) -> dict[str, object]:
    return {"kind": "tool_output", "call_id": "tc_1", "offset": offset, "text": text}


def test_live_output_is_shown_by_the_line_and_bounded() -> None:
    text = shown(output("collecting\n    def test", 0), output("():\n" + "x\n" * 1000, 23))
    assert text.startswith("  │ collecting\n  │     def test():\n  │ x\n")
    assert text.endswith("  │ …\n")
    assert text.count("\n") == 13


def test_output_that_a_new_gateway_tells_again_is_shown_once() -> None:
    assert shown(output("one\ntwo\n", 0), output("one\ntw", 0), output("o\nthree\n", 6)) == (
        "  │ one\n  │ two\n  │ three\n"
    )


def test_the_result_brings_the_output_that_no_delta_brought() -> None:
    assert shown(output("1 ", 0), STORY[12]) == "  │ 1 failed\n  ✗ exit code 1, 310 ms\n"
    assert shown(STORY[12]) == "  │ 1 failed\n  ✗ exit code 1, 310 ms\n"


def test_an_unfinished_last_line_of_other_output_is_shown_too() -> None:
    assert shown(output("no newline", 0), STORY[12]) == "  │ no newline\n  ✗ exit code 1, 310 ms\n"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("run.failed", {"reason": "Unauthorized", "message": "401"}, "✗ failed: Unauthorized: 401"),
        ("run.cancelled", {"reason": "Interrupted"}, "✗ cancelled: Interrupted"),
    ],
)
def test_an_outcome_is_named_with_its_reason(kind: str, data: dict[str, str], line: str) -> None:
    assert shown(event(1, kind, data)).splitlines()[0] == line


def test_a_result_that_was_not_said_before_is_shown() -> None:
    assert shown(event(1, "run.completed", {"result": {"text": "42"}})).startswith("42\n✓ succeeded\n")


def test_colour_is_only_ours_and_closed_on_each_line() -> None:
    text = shown(*STORY, color=True)
    for line in text.splitlines():
        assert line.count("\x1b[") in (0, 2)
        assert line.count("\x1b[") == 0 or line.endswith("\x1b[0m")


def test_an_unknown_event_is_shown_with_its_data() -> None:
    assert "odd.unknown" in shown(event(1, "odd.unknown", {"a": 1}))
