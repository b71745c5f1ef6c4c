"""Makes text of a model, a tool or a sandbox harmless to a terminal. Pure.

Called by `render.py` for every string that came from outside; nothing else may write such text. What a terminal would
obey (escape sequences, control characters) and what would make a reader see another order than the machine (bidi
overrides, invisible tags) is taken out; everything visible stays.
"""

import re

# Escape sequences that are whole: their body goes with them. A broken one loses its introducer only, so that it cannot
# swallow, and thereby hide, what comes after.
_SEQUENCES = re.compile(
    r"""
    (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]                                  # CSI: colours, cursor, erase, mouse, paste modes
  | (?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n\r]*       # OSC (title, links, clipboard), DCS, SOS, PM, APC
    (?:\x07|\x1b\\|\x9c)
  | \x1b[ -/]+[0-~]                                                   # character sets, screen alignment
  | \x1b[0-~]                                                         # two-character ones: reset, index, keypad
    """,
    re.VERBOSE,
)

_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # bidi controls, invisible operators, zero widths
    "\ufff9-\ufffb"  # interlinear annotations
    "\U000e0000-\U000e007f]"  # tags: invisible ASCII
)

_NEWLINES = re.compile("\r\n|[\r\u0085\u2028\u2029]")  # a lone carriage return would overwrite the line
_SURROGATES = re.compile("[\ud800-\udfff]")  # cannot be encoded


def printable(text: str) -> str:
    """`text` without anything a terminal would obey; newlines and tabs stay. Idempotent."""
    text = _NEWLINES.sub("\n", _SEQUENCES.sub("", text))
    return _SURROGATES.sub("\ufffd", _UNSAFE.sub("", text))


def one_line(text: str, limit: int) -> str:
    """`text`, printable, on one line, at most `limit` characters: its white space folded, its end marked when cut."""
    # Cut before cleaning, generously, so that a megabyte costs nothing.
    folded = " ".join(printable(text[: limit * 8]).split())
    cut = len(folded) > limit or len(text) > limit * 8
    return folded[: limit - 1] + "…" if cut else folded
