"""The arithmetic of limits, prices and pauses."""

import pytest

from towline.api.snapshot import IdlePolicy, Limits, Price
from towline.events.totals import Totals
from towline.harness.models.base import Usage
from towline.harness.steps import (
    Finish,
    Sleep,
    Wait,
    cost_micro_usd,
    retry_delay_seconds,
    spent,
    too_many_turns,
    while_idle,
)

PRICE = Price(input_micro_usd=3_000_000, output_micro_usd=15_000_000, cached_input_micro_usd=300_000)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(), 0),
        (Usage(1000, 100), 4500),
        (Usage(1000, 0, 1000), 300),
        (Usage(1000, 0, 400), 1920),
        (Usage(1, 0, 1), 0),
        (Usage(2, 0, 2), 1),
    ],
)
def test_cached_input_has_its_own_price_and_a_request_is_rounded_once(usage, cost):
    assert cost_micro_usd(usage, PRICE) == cost


@pytest.mark.parametrize(
    ("attempt", "retry_after", "delay"),
    [
        (1, None, 1),
        (2, None, 2),
        (3, None, 4),
        (7, None, 60),
        (8, None, None),
        (8, 5, None),
        (1, 30, 30),
        (1, 9999, 120),
    ],
)
def test_pauses_double_up_to_a_minute_unless_the_provider_asks_for_more(attempt, retry_after, delay):
    assert retry_delay_seconds(attempt, 8, retry_after) == delay


def test_no_limit_is_never_reached():
    much = Totals(10**9, 10**9, 10**9, 10**9, 10**9, 10**9)

    assert spent(much, Limits()) is None
    assert too_many_turns(much, Limits()) is None


def test_a_budget_is_spent_when_it_is_reached():
    assert spent(Totals(output_tokens=99), Limits(max_output_tokens=100)) is None
    assert spent(Totals(output_tokens=100), Limits(max_output_tokens=100)) is not None
    assert too_many_turns(Totals(turns=2), Limits(max_turns=3)) is None
    assert too_many_turns(Totals(turns=3), Limits(max_turns=3)) is not None


@pytest.mark.parametrize(
    ("policy", "waited", "step"),
    [
        ({}, 0, Wait(60)),
        ({}, 60, Sleep()),
        ({"suspend_after_seconds": 600}, 60, Wait(540)),
        ({"suspend_after_seconds": 5}, 5, Sleep()),
        ({"finish_after_seconds": 30}, 0, Wait(30)),
        ({"finish_after_seconds": 30}, 30, Finish()),
        ({"finish_after_seconds": 90}, 0, Wait(60)),
        ({"finish_after_seconds": 90}, 60, Sleep()),
        ({"suspend_after_seconds": 10, "finish_after_seconds": 90}, 88, Wait(2)),
        ({"suspend_after_seconds": 10, "finish_after_seconds": 90}, 86, Sleep()),
        ({"suspend_after_seconds": 10, "finish_after_seconds": 90}, 1000, Finish()),
    ],
)
def test_a_run_that_waits_sleeps_and_one_that_waited_too_long_ends(policy, waited, step):
    assert while_idle(IdlePolicy(**policy), waited) == step
