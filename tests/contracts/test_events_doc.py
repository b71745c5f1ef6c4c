"""The page about events tells every type with its data, and none that does not exist."""

import re
from pathlib import Path

from towline.events.types import EVENT_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
ROW = re.compile(r"^\| `([a-z_.]+)` \| [a-z, ]+ \| ([a-z_`, ]*) \|", re.MULTILINE)


def documented() -> dict[str, list[str]]:
    table = PAGE.partition("<!-- types:")[2].partition("\n\nThe last event")[0]
    return {type: re.findall(r"`([a-z_]+)`", keys) for type, keys in ROW.findall(table)}


def test_every_type_is_documented_and_every_documented_type_exists():
    assert set(documented()) == set(EVENT_TYPES)


def test_the_data_of_every_type_is_documented_key_by_key():
    assert documented() == {type: list(shape.__annotations__) for type, shape in EVENT_TYPES.items()}


def test_every_field_of_an_entry_is_documented_in_its_order():
    entry = PAGE.partition("## The entry")[2].partition("\n## ")[0]

    fields = re.findall(r"^\| `([a-z]+)` \|", entry, re.MULTILINE)
    assert fields == ["id", "type", "time", "src", "epoch", "turn", "data"]
