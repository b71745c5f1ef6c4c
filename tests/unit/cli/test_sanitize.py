"""Nothing that a model, a tool or a sandbox says can drive the reader's terminal (security U1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.cli.sanitize import one_line, printable

HOSTILE = {
    # OSC: title, links, clipboard, notifications, colours, shell marks, images
    "OSC 0 sets icon and title": ("a\x1b]0;root@prod\x07b", "ab"),
    "OSC 2 sets the title, ended by ST": ("a\x1b]2;title\x1b\\b", "ab"),
    "OSC 8 link keeps its visible text": ("\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\", "click"),
    "OSC 8 link ended by BEL": ("\x1b]8;id=1;https://evil.example\x07click\x1b]8;;\x07", "click"),
    "OSC 52 writes the clipboard": ("\x1b]52;c;cm0gLXJmIC8K\x07ok", "ok"),
    "OSC 52 asks for the clipboard": ("\x1b]52;c;?\x1b\\ok", "ok"),
    "OSC 9 notification": ("\x1b]9;hello\x07x", "x"),
    "OSC 777 notification": ("\x1b]777;notify;t;b\x07x", "x"),
    "OSC 4 palette": ("\x1b]4;1;rgb:00/00/00\x1b\\x", "x"),
    "OSC 10 asks for the colour (answer lands in the input)": ("\x1b]10;?\x07x", "x"),
    "OSC 50 font": ("\x1b]50;#1\x07x", "x"),
    "OSC 133 shell mark": ("\x1b]133;A\x07x", "x"),
    "OSC 1337 iTerm file": ("\x1b]1337;File=inline=1:AAAA\x07x", "x"),
    "OSC without an end cannot hide what follows": ("\x1b]0;never ends\nnext line", "0;never ends\nnext line"),
    "OSC in C1 form": ("\x9d0;title\x9cx", "x"),
    "OSC in C1 form, ended by BEL": ("\x9d52;c;AAAA\x07x", "x"),
    # CSI: colours, cursor, erase, modes, reports
    "SGR colours": ("\x1b[31mred\x1b[0m", "red"),
    "SGR conceal hides text": ("\x1b[8mhidden\x1b[28m", "hidden"),
    "SGR with sub-parameters": ("\x1b[38:2::1:2:3mx", "x"),
    "cursor home and clear": ("a\x1b[H\x1b[2Jb", "ab"),
    "cursor up and erase line": ("kept\n\x1b[1A\x1b[2Kforged", "kept\nforged"),
    "alternate screen": ("\x1b[?1049hx\x1b[?1049l", "x"),
    "hidden cursor": ("\x1b[?25lx", "x"),
    "mouse reports": ("\x1b[?1003hx", "x"),
    "bracketed paste": ("\x1b[?2004h\x1b[200~x", "x"),
    "device status report": ("\x1b[6nx", "x"),
    "device attributes": ("\x1b[cx\x1b[>0c", "x"),
    "window operations report the title": ("\x1b[21tx", "x"),
    "repeat a character a billion times": ("x\x1b[999999999b", "x"),
    "scrolling region": ("\x1b[5;10rx", "x"),
    "soft reset": ("\x1b[!px", "x"),
    "CSI in C1 form": ("\x9b2Jx", "x"),
    "CSI without an end loses its introducer": ("\x1b[31", "31"),
    "CSI broken off by a newline": ("\x1b[3\n1mx", "3\n1mx"),
    # DCS, SOS, PM, APC
    "DCS sixel": ("\x1bPq#0;2;0;0;0~-\x1b\\x", "x"),
    "DCS asks for settings": ("\x1bP$qm\x1b\\x", "x"),
    "DCS tmux passthrough": ("\x1bPtmux;\x1b\x1b]52;c;AAAA\x07\x1b\\x", "tmux;x"),
    "APC kitty graphics": ("\x1b_Ga=T;AAAA\x1b\\x", "x"),
    "PM": ("\x1b^secret\x1b\\x", "x"),
    "SOS": ("\x1bXsecret\x1b\\x", "x"),
    "DCS in C1 form": ("\x90q\x9cx", "x"),
    # two-character escapes
    "full reset": ("\x1bcx", "x"),
    "reverse index": ("\x1bMx", "x"),
    "line drawing set": ("\x1b(0lqk\x1b(B", "lqk"),
    "screen full of E": ("\x1b#8x", "x"),
    "escape at the very end": ("x\x1b", "x"),
    "escapes nested in one another": ("\x1b\x1b[31m[2Jx", "[2Jx"),
    # C0, DEL, C1
    "bell": ("x\x07y", "xy"),
    "backspaces rewrite the word": ("safe\b\b\b\bevil", "safeevil"),
    "a carriage return rewrites the line": ("$ rm -rf /\r$ ls      ", "$ rm -rf /\n$ ls      "),
    "Windows line ends stay line ends": ("a\r\nb", "a\nb"),
    "NUL": ("a\0b", "ab"),
    "vertical tab and form feed": ("a\x0b\x0cb", "ab"),
    "shift out, shift in": ("a\x0eb\x0f", "ab"),
    "DEL": ("a\x7fb", "ab"),
    "NEL is a line end": ("a\x85b", "a\nb"),
    "the other C1 controls": ("a\x84\x8d\x9ab", "ab"),
    # what people see differs from what is there
    "bidi override": ("user\u202etxt.exe", "usertxt.exe"),
    "bidi isolates": ("a\u2066b\u2069c", "abc"),
    "bidi marks": ("a\u200e\u200f\u061cb", "ab"),
    "zero-width space and byte order mark": ("pay\u200bpal\ufeff", "paypal"),
    "invisible tag characters": ("hi\U000e0041\U000e0042", "hi"),
    "line and paragraph separators": ("a\u2028b\u2029c", "a\nb\nc"),
    "lone surrogate": ("a\ud800b", "a\ufffdb"),
    "interlinear annotation": ("a\ufff9b\ufffac\ufffb", "abc"),
    # and what must stay
    "tabs and newlines stay": ("a\tb\n", "a\tb\n"),
    "other scripts and emoji with joiners stay": ("Žluťoučký 日本 👩\u200d💻 é", "Žluťoučký 日本 👩\u200d💻 é"),
    "brackets without an escape stay": ("arr[0] ]0;x", "arr[0] ]0;x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_string_becomes_harmless(name: str) -> None:
    hostile, harmless = HOSTILE[name]
    assert printable(hostile) == harmless


def test_there_are_enough_hostile_strings() -> None:
    assert len(HOSTILE) >= 40


@given(st.text())
def test_no_control_character_survives_and_a_second_pass_changes_nothing(text: str) -> None:
    clean = printable(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in clean)
    assert printable(clean) == clean
    clean.encode("utf-8")


@given(st.text(alphabet=st.characters(codec="latin-1")), st.integers(0, 40))
def test_text_cut_between_two_chunks_is_as_harmless(text: str, at: int) -> None:
    assert "\x1b" not in printable(text[:at]) + printable(text[at:])


def test_one_line_folds_white_space_and_marks_a_cut() -> None:
    assert one_line("a\n  b\tc", 10) == "a b c"
    assert one_line("abcdefgh", 5) == "abcd…"
    assert one_line("\x1b[31m" * 100 + "end", 20).endswith("…")
