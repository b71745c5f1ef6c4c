"""ModelProvider: where models are, what they cost, and who may use them. Written by the platform.

It is the only kind that names a Secret, and only by reference. A Scripted provider answers from a list of steps
instead of a model: for examples, tests and demonstrations.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from towline.api.common import (
    API_VERSION,
    LIST_SET,
    URL,
    Distinct,
    Namespace,
    ObjectMeta,
    Part,
    SecretRef,
    ToolName,
    list_map,
    repeated,
    rules,
)

MicroUSD = Annotated[int, Field(ge=0, le=10**12)]


class Price(Part):
    """Price of a million tokens, in millionths of a US dollar: integers, so that sums never drift."""

    input_micro_usd: MicroUSD = 0
    """For tokens sent."""
    output_micro_usd: MicroUSD = 0
    """For tokens received."""
    cached_input_micro_usd: MicroUSD = 0
    """For tokens sent that the provider had cached."""


class ProviderModel(Part):
    """One model that the provider serves."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """The provider's name for it."""
    max_output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 8192
    """Bound on one answer, sent with each request."""
    context_tokens: Annotated[int, Field(ge=1, le=1_000_000_000)] = 200_000
    """How many tokens a request may hold; a history that comes near it is compacted."""
    price: Price | None = None
    """What it costs; absent: unknown, and runs with a limit on cost are refused."""


class ScriptedToolCall(Part):
    """A tool use in a scripted answer."""

    name: ToolName
    """Name of the tool."""
    arguments: Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})] = (
        Field(default_factory=dict)
    )
    """Its arguments, as the tool's schema wants them."""


class ScriptedStep(Part):
    """One answer. A step without tool calls ends the turn."""

    text: Annotated[str, Field(max_length=32_768)] = ""
    """What the model says."""
    thinking: Annotated[str, Field(max_length=32_768)] = ""
    """What it thinks before."""
    tool_calls: Annotated[tuple[ScriptedToolCall, ...], Field(max_length=16)] = ()
    """The tools it uses then."""
    chunk_milliseconds: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Pause before each streamed word, so that a demonstration looks alive."""


class Script(Part):
    """What a Scripted provider answers."""

    steps: Annotated[tuple[ScriptedStep, ...], Field(min_length=1, max_length=64)]
    """The n-th answer of a run is the n-th step."""


def _distinct_models(models: tuple[ProviderModel, ...]) -> tuple[ProviderModel, ...]:
    if (twice := repeated(model.name for model in models)) is not None:
        raise ValueError(f'holds "{twice}" twice; expected distinct names')
    return models


class ModelProviderSpec(Part):
    """How the provider is reached."""

    api: Literal["AnthropicMessages", "OpenAIChatCompletions", "Scripted"]
    """The wire format. Scripted needs no provider at all."""
    base_url: URL | None = None
    """Where the API is; absent: the vendor's own address."""
    secret_ref: SecretRef | None = None
    """The API key, in a Secret of the harness namespace; absent for providers that need none."""
    request_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Bound on one whole model request, streaming included."""
    models: Annotated[
        tuple[ProviderModel, ...],
        Field(max_length=64, json_schema_extra=list_map("name")),
        AfterValidator(_distinct_models),
    ] = ()
    """The models that templates may name, the first being the default. An empty list: any, without a price."""
    allowed_namespaces: (
        Annotated[tuple[Namespace, ...], Field(max_length=256, json_schema_extra=LIST_SET), Distinct] | None
    ) = None
    """Namespaces whose runs may use it; absent: all."""
    scripted: Script | None = None
    """The answers of a Scripted provider."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.scripted) == (self.api == 'Scripted')",
                "scripted goes with api Scripted, and only with it",
            )
        )
    )

    @model_validator(mode="after")
    def _script_for_scripted(self) -> Self:
        if self.api == "Scripted" and self.scripted is None:
            raise ValueError("has api Scripted and no scripted; expected scripted.steps with the answers")
        if self.api != "Scripted" and self.scripted is not None:
            raise ValueError(f"has scripted and api {self.api}; expected api Scripted")
        return self


class ModelProvider(Part):
    """A provider of models."""

    api_version: Literal["towline.dev/v1alpha1"] = API_VERSION
    kind: Literal["ModelProvider"] = "ModelProvider"
    metadata: ObjectMeta
    spec: ModelProviderSpec
