"""The labels of everything that belongs to a run, or to the installation. Pure."""

from typing import Literal

from towline.events.event import RunRef
from towline.naming import (
    EPOCH_LABEL,
    FIELD_MANAGER,
    GENERATION_LABEL,
    ROLE_LABEL,
    RUN_NAME_LABEL,
    RUN_NAMESPACE_LABEL,
    RUN_UID_LABEL,
    run_name_label,
)


def run_labels(role: Literal["harness", "sandbox"], run: RunRef, number: int) -> dict[str, str]:
    """Of a pod of `run`: the `number` is a harness' epoch, or a sandbox's generation."""
    return {**belongings(role, run), EPOCH_LABEL if role == "harness" else GENERATION_LABEL: str(number)}


def belongings(role: Literal["harness", "sandbox"], run: RunRef) -> dict[str, str]:
    """Of whatever belongs to `run` for as long as it lives."""
    return {
        "app.kubernetes.io/name": role,
        "app.kubernetes.io/part-of": "towline",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        ROLE_LABEL: role,
        RUN_NAMESPACE_LABEL: run.namespace,
        RUN_NAME_LABEL: run_name_label(run.name),
        RUN_UID_LABEL: run.uid,
    }
