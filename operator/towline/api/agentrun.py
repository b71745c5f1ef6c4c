"""AgentRun: one run of an agent, as its author writes it. Its status is in `agentrun_status.py`.

The spec is a small control record, immutable but for its switches; history is in the event log, never here. An
author can name neither environment, volumes, images, Secrets nor service accounts.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from towline.api.agentrun_status import AgentRunStatus
from towline.api.common import (
    API_VERSION,
    KEY_PATTERN,
    Limits,
    Name,
    ObjectMeta,
    Part,
    Seconds,
    ToolPolicy,
    list_map,
    repeated,
    rules,
)

MAX_PROMPT_CHARACTERS = 32_768
"""Two copies of a spec may have to fit into annotations, whose sum is bounded at 256 KiB."""

MAX_FILE_BYTES = 8_192
"""With 16 files the object stays far below etcd's 1.5 MB, and a patch of one switch stays quick."""

PARAM_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
"""A parameter's name. The schema cannot bound the keys of a map, so only Python checks it."""

MUTABLE = ("suspend", "cancel", "cancelReason", "ttlSecondsAfterFinished")
"""The switches; every other field of the spec says what the run is, and is fixed once it exists."""


class ConfigMapKey(Part):
    """A key of a ConfigMap in the run's namespace."""

    name: Name
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=KEY_PATTERN)]
    """Key in the ConfigMap's data."""


class PromptSource(Part):
    """Where a prompt is read from that is too long to stand in the run."""

    config_map_key_ref: ConfigMapKey
    """A ConfigMap, read once when the run is accepted."""


class TemplateRef(Part):
    """The AgentTemplate: looked up in the run's namespace, then among the platform's."""

    name: Name = "default"
    """Name of the AgentTemplate."""


class ContinueFrom(Part):
    """Another run of the namespace whose history this one starts with."""

    name: Name
    """Name of that AgentRun."""
    seq: Annotated[int, Field(ge=1)] | None = None
    """Last event to take over; absent: all of them."""


class IdlePolicy(Part):
    """What an interactive run does while nobody prompts it."""

    suspend_after_seconds: Seconds | None = None
    """Release harness and sandbox after this much silence, 60 if absent; the next prompt wakes the run."""
    finish_after_seconds: Seconds | None = None
    """End the run as Succeeded after this much silence."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.suspendAfterSeconds) || !has(self.finishAfterSeconds)"
                " || self.suspendAfterSeconds < self.finishAfterSeconds",
                "suspendAfterSeconds must be less than finishAfterSeconds",
            )
        )
    )

    @model_validator(mode="after")
    def _suspends_first(self) -> Self:
        suspend, finish = self.suspend_after_seconds, self.finish_after_seconds
        if suspend is not None and finish is not None and suspend >= finish:
            raise ValueError(
                f"has suspendAfterSeconds {suspend} and finishAfterSeconds {finish}; expected the first to be less"
            )
        return self


def _beneath_workspace(path: str) -> str:
    if path.startswith("/") or "/../" in f"/{path}/":
        raise ValueError(f'is "{path}"; expected a path inside the workspace, such as src/main.py')
    return path


def _small(content: str) -> str:
    if (size := len(content.encode())) > MAX_FILE_BYTES:
        raise ValueError(f"is {size} bytes long; expected at most {MAX_FILE_BYTES}")
    return content


class WorkspaceFile(Part):
    """A text file that stands in the workspace before the first tool call."""

    path: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_beneath_workspace)]
    """Where, relative to the workspace."""
    content: Annotated[str, Field(max_length=MAX_FILE_BYTES), AfterValidator(_small)]
    """The text, at most 8,192 bytes of UTF-8."""
    executable: bool = False
    """Whether the file may be run as a program."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!self.path.startsWith('/') && !('/' + self.path + '/').contains('/../')",
                "path must be relative and stay inside the workspace",
            )
        )
    )


def _distinct_paths(files: tuple[WorkspaceFile, ...]) -> tuple[WorkspaceFile, ...]:
    if (twice := repeated(file.path for file in files)) is not None:
        raise ValueError(f'holds the path "{twice}" twice; expected distinct paths')
    return files


class Workspace(Part):
    """What the run starts with."""

    files: Annotated[
        tuple[WorkspaceFile, ...],
        Field(max_length=16, json_schema_extra=list_map("path")),
        AfterValidator(_distinct_paths),
    ] = ()
    """Small text files, written inline."""


class RunSandbox(Part):
    """How the run uses a sandbox."""

    class_name: Name | None = None
    """The SandboxClass; absent: the template's."""
    policy: Literal["Lazy", "Eager", "Never"] = "Lazy"
    """Lazy makes a sandbox at the first tool call, Eager at once, Never takes the tools that need one away."""
    retain: Literal["Delete", "Suspend"] = "Delete"
    """What becomes of the sandbox while the run is suspended or idle: Suspend keeps its workspace."""


class Approval(Part):
    """How long a gated tool call waits for a person."""

    timeout_seconds: Seconds = 86_400
    """After this much time without a decision, onTimeout applies."""
    on_timeout: Literal["Deny", "Fail"] = "Deny"
    """Deny answers the call with an error and goes on, Fail ends the run."""


def _spec_rules(schema: dict[str, Any]) -> None:
    """One rule for each fixed field, so that the refusal names it.

    With has(), since a rule on an optional field itself does not fire when the field is added or removed; the short
    form `self.?x == oldSelf.?x` is over the API server's cost budget (measured).
    """
    fixed = [
        (
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
            f"{name} cannot be changed: a run is fixed but for {', '.join(MUTABLE)}",
        )
        for name in schema["properties"]
        if name not in MUTABLE
    ]
    schema |= rules(
        ("has(self.prompt) != has(self.promptFrom)", "exactly one of prompt and promptFrom is needed"),
        ("!oldSelf.?cancel.orValue(false) || self.?cancel.orValue(false)", "cancel cannot be taken back"),
        *fixed,
    )


def _params(params: dict[str, str]) -> dict[str, str]:
    if wrong := next((name for name in params if not re.fullmatch(PARAM_PATTERN, name)), None):
        raise ValueError(f'holds the name "{wrong}"; expected a letter or "_", then letters, digits and "_"')
    return params


ParamValue = Annotated[str, Field(max_length=4096)]


class AgentRunSpec(Part):
    """What the author asks for."""

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS)] | None = None
    """The task, in words. Exactly one of prompt and promptFrom."""
    prompt_from: PromptSource | None = None
    """Where to read the prompt. Exactly one of prompt and promptFrom."""
    template_ref: TemplateRef = TemplateRef()
    """Which agent does it."""
    params: Annotated[dict[str, ParamValue], Field(max_length=32), AfterValidator(_params)] = Field(
        default_factory=dict
    )
    """Values for the placeholders {{params.NAME}} in the prompt and in the template's system prompt."""
    interactive: bool = False
    """After an answer the run waits for the next prompt instead of ending."""
    continue_from: ContinueFrom | None = None
    """Start with the history of another run."""
    limits: Limits = Limits()
    """Bounds on the run; where the template has one too, the smaller holds."""
    active_deadline_seconds: Seconds | None = None
    """The run fails after this much time, not counting time suspended or waiting for a person."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 6
    """How many crashed harnesses are replaced before the run fails."""
    suspend: bool = False
    """Stops the harness and keeps all state; false resumes. May change at any time."""
    cancel: bool = False
    """Ends the run as Cancelled. Once true it stays true."""
    cancel_reason: Annotated[str, Field(max_length=1024)] | None = None
    """Why it was cancelled, for the record."""
    idle_policy: IdlePolicy = IdlePolicy()
    """What an interactive run does while nobody prompts it."""
    workspace: Workspace = Workspace()
    """What the run starts with."""
    sandbox: RunSandbox = RunSandbox()
    """How the run uses a sandbox."""
    tool_policy: ToolPolicy = ToolPolicy()
    """Narrows the template's policy: a call passes only if both allow it."""
    approval: Approval = Approval()
    """How long a gated tool call waits for a person."""
    priority: Annotated[int, Field(ge=0, le=1000)] = 0
    """Among queued runs the higher goes first."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = None
    """The run and its history are deleted this long after its end; absent: never. May change at any time."""

    model_config = ConfigDict(json_schema_extra=_spec_rules)

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (self.prompt is None) == (self.prompt_from is None):
            both = "has both prompt and promptFrom" if self.prompt else "has neither prompt nor promptFrom"
            raise ValueError(f"{both}; expected exactly one")
        return self


class AgentRun(Part):
    """One run of an agent."""

    api_version: Literal["towline.dev/v1alpha1"] = API_VERSION
    kind: Literal["AgentRun"] = "AgentRun"
    metadata: ObjectMeta
    spec: AgentRunSpec
    status: AgentRunStatus | None = None

    # On the root: a rule on the status itself is skipped when the whole status is removed. With has(), since the API
    # server's estimate of orValue() on a string is over its cost budget.
    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(oldSelf.status) || !has(oldSelf.status.phase)"
                " || !(oldSelf.status.phase in ['Succeeded', 'Failed', 'Cancelled'])"
                " || (has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase)",
                "the outcome of a run is written once",
            ),
            (
                "!has(oldSelf.status) || !has(oldSelf.status.conditions)"
                " || !oldSelf.status.conditions.exists(c, c.type == 'Finished' && c.status == 'True')"
                " || (has(self.status) && has(self.status.conditions)"
                " && self.status.conditions.exists(c, c.type == 'Finished' && c.status == 'True'))",
                "the condition Finished never reverts",
            ),
            (
                "!has(oldSelf.status) || !has(oldSelf.status.epoch)"
                " || (has(self.status) && has(self.status.epoch) && self.status.epoch >= oldSelf.status.epoch)",
                "status.epoch never falls",
            ),
        )
    )
