"""AgentTemplate: what kind of agent works on a run. Written by a team, or by the platform for all.

It says how the agent is instructed, which model answers, which tools it has and what bounds hold; a run may only
narrow that. It names no Secret: credentials are the ModelProvider's.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from towline.api.common import (
    API_VERSION,
    LIST_SET,
    TOOLS,
    URL,
    Distinct,
    Limits,
    Name,
    Namespace,
    ObjectMeta,
    Part,
    Seconds,
    ToolName,
    ToolPolicy,
    list_map,
    repeated,
)


class ModelRef(Part):
    """The model that answers."""

    provider: Name = "default"
    """Name of the ModelProvider."""
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The provider's name for the model; absent: the first one that the ModelProvider lists."""


class MCPServer(Part):
    """A remote MCP server whose tools the gateway offers beside its own."""

    name: Namespace
    """Stands in front of its tools' names."""
    url: URL
    """Its Streamable-HTTP endpoint."""


def _distinct_servers(servers: tuple[MCPServer, ...]) -> tuple[MCPServer, ...]:
    if (twice := repeated(server.name for server in servers)) is not None:
        raise ValueError(f'holds "{twice}" twice; expected distinct names')
    return servers


class HarnessRef(Part):
    """Which harness runs the loop."""

    kind: Literal["native"] = "native"
    """native is towline's own loop."""


class AgentTemplateSpec(Part):
    """How the agent works."""

    system_prompt: Annotated[str, Field(max_length=32_768)] = ""
    """Instructions that stand before every conversation; absent: none."""
    model: ModelRef = ModelRef()
    """The model that answers."""
    tools: Annotated[tuple[ToolName, ...], Field(max_length=64, json_schema_extra=LIST_SET), Distinct] = TOOLS
    """The gateway's tools that the model is offered, in this order. An empty list: none."""
    mcp_servers: Annotated[
        tuple[MCPServer, ...],
        Field(max_length=16, json_schema_extra=list_map("name")),
        AfterValidator(_distinct_servers),
    ] = ()
    """Remote MCP servers. The gateway does not serve them yet, and a run with any is refused."""
    tool_policy: ToolPolicy = ToolPolicy()
    """Which of the tools may be called; absent: all that are listed."""
    sandbox_class_name: Name = "default"
    """The SandboxClass of runs that name none."""
    harness: HarnessRef = HarnessRef()
    """Which harness runs the loop."""
    limits: Limits = Limits()
    """Caps: a run's own limits hold only where they are smaller."""
    active_deadline_seconds: Seconds | None = None
    """Cap on a run's activeDeadlineSeconds, and the deadline of runs that have none."""


class AgentTemplate(Part):
    """A kind of agent."""

    api_version: Literal["towline.dev/v1alpha1"] = API_VERSION
    kind: Literal["AgentTemplate"] = "AgentTemplate"
    metadata: ObjectMeta
    spec: AgentTemplateSpec = AgentTemplateSpec()
