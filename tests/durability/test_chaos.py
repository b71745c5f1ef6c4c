"""Runs go on while their store is killed again and again; `make redis-chaos` does it for as long as one likes."""

import pytest

from tests.durability.chaos import chaos


@pytest.mark.timeout(180)
async def test_runs_whose_store_is_killed_again_and_again_lose_nothing(tmp_path_factory, capsys):
    count = await chaos(tmp_path_factory.mktemp("cache"), 1.0, at_once=3, scale=0.1)

    assert count.good, capsys.readouterr().out
    assert count.runs == 3
    assert count.restarts >= 2
