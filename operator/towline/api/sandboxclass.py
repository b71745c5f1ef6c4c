"""SandboxClass: what a sandbox is made of. Written by the platform.

Image, isolation, size, network and how many are kept ready are decided here and nowhere else. Each provider has an
optional sub-object of its own instead of a union, so that no field of one leaks into another.
"""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from towline.api.common import ABSOLUTE_PATH_PATTERN, API_VERSION, Name, ObjectMeta, Part, rules
from towline.api.quantities import Bytes, Cores


class Resources(Part):
    """Upper bounds for one sandbox. Absent: none, or what the cluster imposes."""

    cpu: Cores | None = None
    """Cores, such as 500m or 2."""
    memory: Bytes | None = None
    """Memory, such as 512Mi; more ends the sandbox."""
    disk: Bytes | None = None
    """Space for the workspace, such as 2Gi."""
    max_processes: Annotated[int, Field(ge=16, le=100_000)] = 512
    """Processes and threads at a time."""


class Network(Part):
    """What a sandbox may reach. Nothing reaches it but the gateway."""

    preset: Literal["None", "Internet"] = "None"
    """None: nothing, DNS included. Internet: public addresses, and nothing inside the cluster."""


class WorkspaceVolume(Part):
    """A PersistentVolumeClaim for each run that retains its sandbox by Suspend."""

    storage_class_name: Name | None = None
    """StorageClass of the claims; absent: the cluster's default."""
    size: Bytes
    """Space that each claim asks for, such as 5Gi."""


class ClassWorkspace(Part):
    """Where workspaces are kept."""

    volume: WorkspaceVolume | None = None
    """Outlives the sandbox's pod, until the run has ended. Absent: a workspace goes with its pod."""


class LocalOptions(Part):
    """For the provider local, which runs the sandbox on this machine in bubblewrap."""

    rootfs: Annotated[str, Field(min_length=1, max_length=4096, pattern=ABSOLUTE_PATH_PATTERN)] | None = None
    """Absolute path of the folder that becomes the sandbox's root; absent: this machine's programs, read only."""


class SandboxClassSpec(Part):
    """How sandboxes of this class are made."""

    provider: Literal["pod", "agent-sandbox", "local"] = "pod"
    """Who makes them: towline itself, the agent-sandbox controller, or bubblewrap on this machine."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Container image; any will do, the tool server brings its own interpreter. Absent: the installation's."""
    runtime_class_name: Name | None = None
    """RuntimeClass of the pods, for example one of gVisor or Kata Containers."""
    resources: Resources = Resources()
    """Upper bounds for one sandbox."""
    network: Network = Network()
    """What a sandbox may reach."""
    exec_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """For commands that name no timeout of their own."""
    start_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """How long a tool call waits for its sandbox before it gets an error."""
    workspace: ClassWorkspace = ClassWorkspace()
    """Where workspaces are kept."""
    warm_replicas: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many sandboxes are kept ready in advance."""
    local: LocalOptions | None = None
    """Only for the provider local."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!has(self.local) || self.provider == 'local'", "local goes with provider local only"),
        )
    )

    @model_validator(mode="after")
    def _options_of_the_provider(self) -> Self:
        if self.local is not None and self.provider != "local":
            raise ValueError(f"has local and provider {self.provider}; expected provider local")
        return self


class SandboxClass(Part):
    """A class of sandboxes."""

    api_version: Literal["towline.dev/v1alpha1"] = API_VERSION
    kind: Literal["SandboxClass"] = "SandboxClass"
    metadata: ObjectMeta
    spec: SandboxClassSpec = SandboxClassSpec()
