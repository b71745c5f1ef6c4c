"""A paused harness that was replaced changes nothing when it wakes; `make takeovers` does a thousand."""

import pytest

from tests.durability.takeovers import takeovers


@pytest.mark.timeout(180)
async def test_a_paused_harness_that_was_replaced_writes_nothing_and_has_no_tool_run(tmp_path_factory, capsys):
    count = await takeovers(tmp_path_factory.mktemp("cache"), processes=3, writers=30)

    assert count.good, capsys.readouterr().out
    assert count.done == 33
