"""The phase follows from the conditions and from nothing else."""

import ast
import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest

from towline.api import conditions as module
from towline.api.conditions import OUTCOMES, PHASES, REASONS, TERMINAL_PHASES, Condition, ConditionType, phase

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def conditions(**statuses: str) -> list[Condition]:
    """`HarnessReady="False/Asleep"`: the status, and the reason behind the slash."""
    return [
        Condition.from_wire(
            {
                "type": kind,
                "status": text.partition("/")[0],
                "reason": text.partition("/")[2] or "Any",
                "lastTransitionTime": NOW.isoformat(),
            }
        )
        for kind, text in statuses.items()
    ]


STARTED = {"Accepted": "True", "HarnessReady": "True/Running", "Succeeded": "Unknown/Running"}


@pytest.mark.parametrize(
    ("expected", "statuses"),
    [
        ("Pending", {}),
        ("Pending", {"Accepted": "False/TemplateNotFound"}),
        ("Pending", {"Accepted": "True", "HarnessReady": "False/Starting"}),
        ("Pending", {"Accepted": "True", "HarnessReady": "False/Unschedulable", "Queued": "False"}),
        ("Queued", {"Accepted": "True", "Queued": "True/ConcurrencyLimit"}),
        ("Running", STARTED),
        ("Running", STARTED | {"SandboxReady": "False/NotRequested"}),
        ("Running", STARTED | {"HarnessReady": "False/Restarting"}),
        ("InputRequired", STARTED | {"InputRequired": "True/ApprovalRequired"}),
        ("InputRequired", STARTED | {"HarnessReady": "False/Asleep", "InputRequired": "True/PromptAwaited"}),
        ("Suspended", STARTED | {"Suspended": "True/UserRequested", "HarnessReady": "False/Released"}),
        ("Suspended", STARTED | {"Suspended": "True/UserRequested", "InputRequired": "True/PromptAwaited"}),
        ("Cancelling", STARTED | {"Succeeded": "Unknown/Cancelling", "InputRequired": "True"}),
        ("Succeeded", STARTED | {"Succeeded": "True/Completed", "Finished": "True/Completed"}),
        ("Failed", {"Succeeded": "False/StoreLost", "Finished": "True/StoreLost", "Accepted": "False/InvalidSpec"}),
        ("Failed", STARTED | {"Succeeded": "False/CostLimitReached", "Finished": "True/CostLimitReached"}),
        ("Cancelled", STARTED | {"Succeeded": "False/Cancelled", "Finished": "True/Cancelled"}),
    ],
)
def test_conditions_have_this_phase(expected: str, statuses: dict[str, str]) -> None:
    assert phase(conditions(**statuses)) == expected


def test_a_finished_run_has_a_terminal_phase_whatever_else_is_true() -> None:
    others = ("Accepted", "Queued", "HarnessReady", "SandboxReady", "InputRequired", "Suspended")
    for statuses in itertools.product(("True", "False", "Unknown"), repeat=len(others)):
        found = phase(conditions(**dict(zip(others, statuses, strict=True)), Finished="True/Completed"))
        assert found in TERMINAL_PHASES


def test_the_order_of_the_conditions_does_not_matter() -> None:
    given = conditions(**STARTED, Suspended="True/UserRequested", InputRequired="True/PromptAwaited")
    assert {phase(order) for order in itertools.permutations(given)} == {"Suspended"}


def test_every_condition_has_reasons_and_every_reason_a_meaning() -> None:
    assert set(REASONS) == set(ConditionType)
    assert all(meaning.endswith(".") for reasons in REASONS.values() for meaning in reasons.values())
    assert set(OUTCOMES) <= set(REASONS[ConditionType.SUCCEEDED])
    assert set(TERMINAL_PHASES) < set(PHASES)


NOT_YET = {
    "ApprovalRequired",
    "ApprovalDenied",
    "ApprovalTimeout",
    "ConcurrencyLimit",
}
"""Reasons of what is in the API and not built: approvals and queues."""


def test_every_reason_is_written_somewhere_but_for_those_of_what_is_not_built_yet() -> None:
    listed = Path(module.__file__)
    sources = [path.read_text() for path in listed.parents[1].rglob("*.py") if path != listed]
    nodes = itertools.chain.from_iterable(ast.walk(ast.parse(source)) for source in sources)
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    reasons = {reason for each in REASONS.values() for reason in each}

    assert reasons - words == NOT_YET
