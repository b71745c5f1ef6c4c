"""The kinds of objects that we touch, and their addresses. Pure.

The one place that knows API groups, plurals and scopes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from towline.api.common import API_VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind, at the version that we speak."""

    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group, empty for the core."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Path of an object, or without a name of the collection; without a namespace of the whole cluster's."""
        parts = ["apis" if "/" in self.api_version else "api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural]
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


POD = Kind("v1", "Pod", "pods")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
SECRET = Kind("v1", "Secret", "secrets")
EVENT = Kind("v1", "Event", "events")
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
TOKEN_REVIEW = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", namespaced=False)
CUSTOM_RESOURCE = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False)

AGENT_RUN = Kind(API_VERSION, "AgentRun", "agentruns")
AGENT_TEMPLATE = Kind(API_VERSION, "AgentTemplate", "agenttemplates")
MODEL_PROVIDER = Kind(API_VERSION, "ModelProvider", "modelproviders", namespaced=False)
SANDBOX_CLASS = Kind(API_VERSION, "SandboxClass", "sandboxclasses", namespaced=False)

OURS = (AGENT_RUN, AGENT_TEMPLATE, MODEL_PROVIDER, SANDBOX_CLASS)
"""The kinds that the chart's CRDs define."""

_ALL = {
    (kind.api_version, kind.name): kind
    for kind in (
        *OURS,
        *(POD, CLAIM, SECRET, EVENT, NAMESPACE, LEASE, NETWORK_POLICY, TOKEN_REVIEW, CUSTOM_RESOURCE),
    )
}


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """The kind of a whole object; KeyError for one that we never touch."""
    return _ALL[obj["apiVersion"], obj["kind"]]
