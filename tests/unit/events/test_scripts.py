"""The Lua files: documented at their head, and safe for data and for Cluster."""

import re
from pathlib import Path

import pytest

import towline.events.store

FOLDER = Path(towline.events.store.__file__).parent / "lua"
SCRIPTS = sorted(path for path in FOLDER.glob("*.lua") if path.name != "_prelude.lua")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_takes_and_gives(path):
    header = re.match(r"(--.*\n)+", path.read_text())

    assert header is not None
    assert header[0].startswith(f"-- {path.stem}: ")
    for part in ("-- KEYS  meta, log", "-- ARGV  channel", "-- Reply ", "-- Errors "):
        assert part in header[0]


@pytest.mark.parametrize("path", [*SCRIPTS, FOLDER / "_prelude.lua"], ids=lambda path: path.stem)
def test_a_script_neither_encodes_data_anew_nor_makes_up_keys(path):
    code = re.sub(r"--.*", "", path.read_text())

    assert "cjson.encode" not in code
    keys = re.findall(r"redis\.p?call\('[A-Z]+', ([^,)]+)", code)
    assert set(keys) <= {"META", "LOG", "CALLS", "SANDBOX", "CHANNEL", "INBOX", "BLOB .. id", "KEYS[3]", "'STREAM'"}
