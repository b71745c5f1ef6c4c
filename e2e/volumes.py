"""Volumes for workspaces without anybody who provisions them: folders of the sandbox node, offered one by one.

A StorageClass of its own keeps a test's volumes from the claims of others. They are `local` volumes, whose owner the
kubelet sets as it does on a disk; or `hostPath` ones, which it leaves as they are, as many a file server does.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from e2e.cluster.layout import Cluster
from e2e.kubectl import Kubectl, Object

NODE = "sandbox"
FOLDER = "workspaces"
"""Beneath the node's /var."""


@dataclass
class Volumes:
    """The volumes of one StorageClass, called `name`."""

    kubectl: Kubectl
    cluster: Cluster
    name: str
    made: list[str] = field(default_factory=list)

    def enter(self) -> None:
        self.kubectl.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": self.name},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        )

    def offer(self, count: int = 1, kind: Literal["local", "hostPath"] = "local") -> None:
        """So many more empty volumes that nobody has claimed, of folders that belong to root."""
        for _ in range(count):
            name = f"{self.name}-{len(self.made) + 1}"
            self.made.append(name)
            self.folder(name).mkdir(mode=0o755, parents=True)
            self.kubectl.apply(self._manifest(name, kind))

    def folder(self, name: str) -> Path:
        """Where a volume's files are, as this machine sees them."""
        return self.cluster.node(NODE).var / FOLDER / name

    def leave(self) -> None:
        """The claims are gone, or held by nobody."""
        self.kubectl("delete", "persistentvolume", *self.made, "--ignore-not-found", "--wait=false", check=False)
        self.kubectl("delete", "storageclass", self.name, "--ignore-not-found")
        for name in self.made:
            shutil.rmtree(self.folder(name), ignore_errors=True)

    def _manifest(self, name: str, kind: str) -> Object:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "64Mi"},
                kind: {"path": f"/var/{FOLDER}/{name}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": self.name,
                "volumeMode": "Filesystem",
            },
        }
