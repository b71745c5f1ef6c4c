"""Where a kept store is."""

import argparse
from pathlib import Path

import pytest

from towline.cli.store_option import at_home, store_path
from towline.errors import Invalid
from towline.settings import LocalSettings


def test_the_store_is_in_the_state_folder_unless_one_is_named() -> None:
    settings = LocalSettings(state_home=Path("/state"))
    assert store_path(argparse.Namespace(store=None), settings) == Path("/state/towline")
    assert store_path(argparse.Namespace(store=Path("/mine")), settings) == Path("/mine")


def test_a_user_without_a_home_folder_is_told_what_to_set() -> None:
    with pytest.raises(Invalid, match="set HOME or XDG_STATE_HOME"):
        at_home(Path("~no-such-user-here/state"), "XDG_STATE_HOME")
