"""Where something dies on the cluster: at failpoints, as in the sweep on one machine, and from outside. Pure."""

from random import Random

FAILPOINTS = (
    "harness.turn.after",
    "harness.model.streaming",
    "harness.answer.before",
    "harness.answer.after",
    "harness.call.before",
    "harness.call.sent",
    "harness.call.after",
    "harness.result.after",
    "harness.completing.before",
    "harness.finish.before",
    "harness.finish.after",
    "gateway.claim.after",
    "gateway.forward.after",
    "gateway.settle.before",
    "gateway.answer.before",
    "operator.raise.after",
    "operator.harness.after",
    "operator.sandbox.after",
    "operator.status.after",
)
"""Of those that every run comes by; a process ends itself there."""

OUTSIDE = {
    "outside.harness.kill": "the harness' process is killed in a call",
    "outside.harness.delete": "the harness' pod is deleted by force in a call",
    "outside.harness.pause": "the harness is stopped, taken for lost, and woken while its successor works",
    "outside.sandbox.delete": "the sandbox' pod is deleted by force in a call",
    "outside.gateway.kill": "the processes of all gateways are killed in a call",
    "outside.gateway.delete": "the pods of all gateways are deleted by force in a call",
    "outside.operator.kill": "the operator's process is killed in a call",
    "outside.operator.both": "the operator's process is killed, and then the harness'",
}
"""Name → what is done to a run that is in a call, at any moment of it."""

POINTS = (*FAILPOINTS, *OUTSIDE)


def role(point: str) -> str:
    """Who dies."""
    return point.removeprefix("outside.").partition(".")[0]


def alone(point: str) -> bool:
    """Whether no other run may be there at the same time: all share gateways and operator."""
    return role(point) in ("gateway", "operator")


def run_name(failpoint: str, hit: int, tag: str) -> str:
    """Name of a run whose first harness dies when it comes by for the `hit`-th time; arming.py's policy reads it."""
    return f"fp-{failpoint}-{hit}-{tag}"


def telling_run_name(tag: str) -> str:
    """…or, instead, tells what it comes by."""
    return f"tell-{tag}"


def seeded(point: str, seed: int) -> Random:
    """What is left to chance at a point; the same again for the same seed."""
    return Random(f"{point}:{seed}")  # noqa: S311 - no secret
