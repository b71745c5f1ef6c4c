"""Totals are added by place."""

from towline.events.totals import FIELDS, NOTHING, Totals


def test_totals_are_added_by_place():
    assert Totals(1, 2, 3, 4, 5, 6, 7) + Totals(turns=10, cost_micro_usd=60, prompts=1) == Totals(11, 2, 3, 4, 5, 66, 8)


def test_nothing_changes_nothing():
    assert Totals(turns=1) + NOTHING == Totals(turns=1)


def test_the_values_stand_in_the_order_of_the_fields():
    totals = Totals(1, 2, 3, 4, 5, 6, 7)

    assert totals.values() == tuple(getattr(totals, name) for name in FIELDS)
