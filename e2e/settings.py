"""What the end-to-end suite is told: the one place where its tests read the environment.

E2E_CLUSTER     name of a cluster of `python -m e2e.cluster` that is up; it is left up
E2E_KUBECONFIG  a cluster of your own; then E2E_VALUES must name your registry, nodes and sandbox image
E2E_VALUES      a further values file for the chart
E2E_KEEP        set: the installation stays after the tests
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from e2e.cluster import places


@dataclass(frozen=True, slots=True)
class Settings:
    cluster: str | None
    kubeconfig: Path | None
    values: Path | None
    keep: bool
    as_is: bool


@cache
def settings() -> Settings:
    given = places.environment()

    def path(variable: str) -> Path | None:
        return Path(given[variable]).expanduser().absolute() if given.get(variable) else None

    return Settings(
        cluster=given.get("E2E_CLUSTER") or None,
        kubeconfig=path("E2E_KUBECONFIG"),
        values=path("E2E_VALUES"),
        keep=bool(given.get("E2E_KEEP")),
        as_is=bool(given.get("E2E_AS_IS")),
    )
