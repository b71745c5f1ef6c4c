"""The builders with what an installation decided already filled in: what the controller is given.

Made by the operator's main. It adds the one thing that is neither the run's nor the configuration's: a sandbox's key.
"""

from collections.abc import Sequence
from typing import Any

from towline.api.common import SecretRef
from towline.api.snapshot import Snapshot
from towline.events.event import RunRef
from towline.manifests.config import PodConfig
from towline.manifests.harness_pod import harness_pod
from towline.manifests.network_policy import sandbox_policies
from towline.manifests.sandbox_pod import sandbox_pod
from towline.manifests.workspace_claim import workspace_claim
from towline.naming import sandbox_key, sandbox_name, workspace_claim_name


class PodMakers:
    """`forbidden` may be set anew at any time; sandboxes made after that are told."""

    def __init__(self, config: PodConfig, installation_secret: bytes, forbidden: Sequence[str] = ()) -> None:
        self.config, self.forbidden = config, tuple(forbidden)
        self._secret = installation_secret

    def harness_pod(self, run: RunRef, snapshot: Snapshot, epoch: int, secret: SecretRef | None) -> dict[str, Any]:
        """The pod that holds the run under `epoch`; `secret` has the model's API key."""
        return harness_pod(run, snapshot, epoch, self.config.harness, model_key=secret)

    def sandbox_pod(self, run: RunRef, snapshot: Snapshot, generation: int) -> dict[str, Any]:
        """The run's `generation`-th sandbox."""
        key = sandbox_key(self._secret, sandbox_name(run.uid, generation))
        claim = workspace_claim_name(run.uid) if snapshot.sandbox.keeps_workspace else ""
        return sandbox_pod(
            run, snapshot, generation, self.config.sandbox, key=key, forbidden=self.forbidden, claim=claim
        )

    def workspace_claim(self, run: RunRef, snapshot: Snapshot) -> dict[str, Any] | None:
        """What keeps the run's workspace; None where nothing does."""
        return workspace_claim(run, snapshot, self.config.sandbox.namespace)

    def network_policies(self) -> Sequence[dict[str, Any]]:
        """Without these no sandbox may be made."""
        return sandbox_policies(self.config.sandbox.namespace, self.config.system_namespace)
