"""What an installation decides about its pods: images, namespaces, nodes, sizes. Written by the chart, read once.

The chart renders it as JSON from its values; `PodConfig.from_json` is the reader. It holds no secret, only their names.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from towline.api.quantities import Bytes, Cores, parse_bytes, parse_millis
from towline.api.snapshot import Frozen
from towline.errors import Invalid

PullPolicy = Literal["Always", "IfNotPresent", "Never"]
Quantities = Mapping[str, str]
"""A resource's name to its quantity, as in a container: `cpu`, `memory`, `ephemeral-storage`."""


class Toleration(Frozen):
    """As in a pod."""

    key: str
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None

    def manifest(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)


class Placement(Frozen):
    """Which nodes a pod may run on; a node must have all of the labels."""

    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...] = ()


class Image(Frozen):
    """A container image, and when the kubelet fetches it."""

    reference: str
    pull_policy: PullPolicy = "IfNotPresent"


class HarnessPods(Frozen):
    """The trusted pods, one for each attempt of a run."""

    namespace: str = "towline-harness"
    image: Image
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str = "towline-harness"
    """Whose token the gateway knows; it has no rights."""
    placement: Placement
    gateway_url: str
    store_secret: str = "towline-store"  # noqa: S105 - its name
    """Secret of the namespace whose key `url` is the event store's."""
    requests: Quantities
    limits: Quantities
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class SandboxSizes(Frozen):
    """Amounts for one sandbox, as a SandboxClass writes them."""

    cpu: Cores
    memory: Bytes
    disk: Bytes

    @property
    def cpu_millis(self) -> int:
        return parse_millis(self.cpu)

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory)

    @property
    def disk_bytes(self) -> int:
        return parse_bytes(self.disk)


class SandboxPods(Frozen):
    """The untrusted pods."""

    namespace: str = "towline-sandboxes"
    image: Image
    """Of classes that name none; its pull policy is that of every class."""
    image_pull_secrets: tuple[str, ...] = ()
    tools: Image
    """The tool server with its own interpreter."""
    delivery: Literal["ImageVolume", "InitContainer"] = "ImageVolume"
    """How the tools get into the pod. An init container costs up to a second and runs everywhere."""
    loader: str = "ld-linux-x86-64.so.2"
    """File name of the loader in the tools image; it follows the machine's architecture."""
    placement: Placement
    requests: SandboxSizes
    limits: SandboxSizes
    """For what a class leaves open."""
    longest_seconds: Annotated[int, Field(ge=60)] = 7 * 24 * 3600
    """No sandbox outlives this, whatever happens to the operator: what it holds is lost then."""
    netcheck_seconds: Annotated[int, Field(ge=1)] = 20
    """How long a sandbox waits for the network policy to take hold before it gives up."""
    forbidden: tuple[str, ...] = ()
    """What no sandbox may reach beside the destinations that the operator finds."""
    resolvers: tuple[str, ...] = ()
    """Public name servers of classes with network Internet; the cluster's own is not theirs to ask."""


class PodConfig(Frozen):
    """Everything that the makers need beside the run."""

    system_namespace: str = "towline-system"
    harness: HarnessPods
    sandbox: SandboxPods

    @classmethod
    def from_json(cls, text: str | bytes) -> "PodConfig":
        """Raises Invalid with a sentence for each fault."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as fault:
            raise Invalid(
                *(f"pod configuration: {_where(each['loc'])}: {each['msg']}" for each in fault.errors())
            ) from None


def _where(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place)) or "the whole"
