"""The resolved, immutable snapshot of a run: all that harness and gateway know of it.

Made once by `api/resolve.py` from the run and the kinds it names, stored in Redis by the operator (or the local
launcher) under the run's `spec` key. It holds no secret. A later edit of the template changes no running agent.
"""

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Frozen(BaseModel):
    """Camel case on the wire, immutable inside; unknown keys are refused, since an older reader must not half-obey."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Price(Frozen):
    """Micro-USD for a million tokens: integers, so that sums never drift."""

    input_micro_usd: int = 0
    output_micro_usd: int = 0
    cached_input_micro_usd: int = 0


class ScriptedCall(Frozen):
    """One tool use of a scripted answer."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ScriptedStep(Frozen):
    """One answer of the scripted model: text, then the tool uses it asks for."""

    text: str = ""
    thinking: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    chunk_milliseconds: int = 0
    """Pause before each streamed word: demos look alive, tests leave it at 0."""


class Model(Frozen):
    """Which model answers, over which wire format."""

    api: Literal["AnthropicMessages", "OpenAIChatCompletions", "Scripted"]
    provider: str
    name: str
    base_url: str = ""
    max_output_tokens: int = 8192
    context_tokens: int = 200_000
    """How much one request may hold; a history that comes near it is compacted."""
    request_timeout_seconds: int = 600
    """Bound on one whole model request, streaming included."""
    price: Price = Price()
    script: tuple[ScriptedStep, ...] = ()
    """Only for api Scripted: the n-th assistant message of the run is the n-th step."""


class Rule(Frozen):
    """A tool and what happens to its calls; the first rule that names the tool decides."""

    tool: str
    action: Literal["Allow", "Deny"]


class Policy(Frozen):
    """What the gateway may forward. A tool that no rule names gets `default`."""

    default: Literal["Allow", "Deny"] = "Deny"
    rules: tuple[Rule, ...] = ()


class Limits(Frozen):
    """Cumulative over all attempts of the run; None means unlimited. Checked before the next request."""

    max_turns: int | None = None
    max_tool_calls: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_cost_micro_usd: Annotated[int | None, Field(alias="maxCostMicroUSD")] = None


class WorkspaceFile(Frozen):
    """A file the run starts with; `path` is relative to the workspace."""

    path: str
    content: str
    executable: bool = False


class Volume(Frozen):
    """What keeps a workspace."""

    storage_class_name: str = ""
    """Empty: the cluster's default."""
    size_bytes: int


class Sandbox(Frozen):
    """How the run's sandbox is made, if it is made."""

    policy: Literal["Lazy", "Eager", "Never"] = "Lazy"
    class_name: str = "default"
    provider: str = "local"
    runtime_class_name: str = ""
    """RuntimeClass of a pod; empty: the cluster's default."""
    image: str = ""
    """Container image, or for the `local` provider a folder that becomes the root; empty: the provider's own."""
    exec_timeout_seconds: int = 120
    """For commands that name no timeout of their own."""
    start_timeout_seconds: int = 120
    """How long a call waits for a sandbox before it gets an error result."""
    network: Literal["None", "Internet"] = "None"
    memory_bytes: int | None = None
    cpu_millis: int | None = None
    disk_bytes: int | None = None
    max_processes: int = 512
    retain: Literal["Delete", "Suspend"] = "Delete"
    """What becomes of it while the run sleeps or is suspended; Suspend keeps the workspace where the provider can."""
    volume: Volume | None = None
    """Of the class: what a pod's workspace is kept in. None: it goes with the pod."""

    @property
    def keeps_workspace(self) -> bool:
        """Whether the workspace outlives the pods of the run's sandboxes."""
        return self.retain == "Suspend" and self.volume is not None


class IdlePolicy(Frozen):
    """What an interactive run does while nobody prompts it, in seconds since it began to wait."""

    suspend_after_seconds: int | None = None
    """Then its harness ends, until there is a prompt; None: after a time of the harness' own."""
    finish_after_seconds: int | None = None
    """Then the run completes with its last answer; None: never."""


class ContinueFrom(Frozen):
    """The run whose history this one begins with."""

    namespace: str
    uid: str
    seq: int | None = None
    """Its last event to take over; None: all of them."""


class Snapshot(Frozen):
    """Everything about a run that does not change while it runs."""

    version: Literal[1] = 1
    namespace: str
    name: str
    uid: str
    prompt: str
    interactive: bool = False
    idle_policy: IdlePolicy = IdlePolicy()
    continue_from: ContinueFrom | None = None
    system_prompt: str = ""
    model: Model
    tools: tuple[str, ...] = ()
    """Names of the gateway's tools that the model is offered, in the order it sees them."""
    policy: Policy = Policy()
    limits: Limits = Limits()
    active_deadline_seconds: int | None = None
    backoff_limit: int = 6
    """How many times a crashed harness is replaced before the run fails."""
    sandbox: Sandbox = Sandbox()
    workspace: tuple[WorkspaceFile, ...] = ()

    def to_json(self) -> bytes:
        """The stored form: camel case, defaults written out, so that a later default changes no stored run."""
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> "Snapshot":
        """Raises pydantic.ValidationError when `raw` is no snapshot of a version this code knows."""
        return cls.model_validate_json(raw)

    @property
    def digest(self) -> str:
        """`sha256:…` of the stored form; equal digests mean equal runs."""
        return "sha256:" + hashlib.sha256(self.to_json()).hexdigest()
