"""What the controller is given: the makers of its pods and policies, and where things are.

Implemented by `towline.manifests` in the real operator and by a few lines in tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from towline.api.common import SecretRef
from towline.api.snapshot import Snapshot
from towline.events.event import RunRef


class Manifests(Protocol):
    """Pure builders: the same arguments, the same object. Names and labels follow `towline.naming`."""

    def harness_pod(self, run: RunRef, snapshot: Snapshot, epoch: int, secret: SecretRef | None) -> dict[str, Any]:
        """The pod that holds the run under `epoch`; `secret` has the model's API key, None where none is needed."""

    def sandbox_pod(self, run: RunRef, snapshot: Snapshot, generation: int) -> dict[str, Any]:
        """The run's `generation`-th sandbox, with the key that it proves itself with."""

    def workspace_claim(self, run: RunRef, snapshot: Snapshot) -> dict[str, Any] | None:
        """The claim that every sandbox of the run mounts; None where the workspace goes with the pod."""

    def network_policies(self) -> Sequence[dict[str, Any]]:
        """The policies without which no sandbox is made."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Where the installation lives."""

    system: str = "towline-system"
    """The operator's own, and that of the templates which all namespaces may use."""
    harness: str = "towline-harness"
    sandboxes: str = "towline-sandboxes"
