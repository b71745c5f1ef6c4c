"""Which model answers a local run: the one its manifest names, or the user's own where nobody else's is named.

Called by `order.py`. A run of a Scripted provider (the examples), or of the `default` provider that nobody wrote, goes
to the model whose key is in the environment. Pure: it reads settings, not the environment, and sends nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from towline.api import defaults
from towline.api.agenttemplate import AgentTemplate, ModelRef
from towline.api.faults import sentence
from towline.api.modelprovider import ModelProvider
from towline.api.resolve import find_provider
from towline.errors import Invalid
from towline.settings import LocalSettings

Api = Literal["AnthropicMessages", "OpenAIChatCompletions"]

KEY_VARIABLES: dict[str, str] = {"AnthropicMessages": "ANTHROPIC_API_KEY", "OpenAIChatCompletions": "OPENAI_API_KEY"}
URL_VARIABLES: dict[str, str] = {"AnthropicMessages": "ANTHROPIC_BASE_URL", "OpenAIChatCompletions": "OPENAI_BASE_URL"}
MODEL_VARIABLE = "TOWLINE_MODEL"

DEFAULT_MODELS: dict[Api, str] = {"AnthropicMessages": "claude-sonnet-5-5", "OpenAIChatCompletions": "gpt-6.2-sol"}
"""Taken when TOWLINE_MODEL names none: each vendor's all-round model."""

DEFAULT_PROVIDER = "default"


@dataclass(frozen=True, slots=True)
class Choice:
    """What resolves to the run's model. `key` is a secret: it goes into a file, and nowhere else."""

    template: AgentTemplate
    provider: ModelProvider
    key: str | None = None
    note: str = ""
    """For a person: what was chosen, and where the key goes."""

    def __repr__(self) -> str:
        return f"Choice({self.provider.metadata.name!r}, key={'…' if self.key else None})"


def choose_model(template: AgentTemplate, providers: Sequence[ModelProvider], settings: LocalSettings) -> Choice:
    """The provider that answers, and its key. Raises Invalid when there is none, or its key is missing."""
    name = template.spec.model.provider
    written = next((each for each in providers if each.metadata.name == name), None)
    if written is None and name != DEFAULT_PROVIDER:
        written = find_provider(name, providers)  # raises, with a suggestion
    if written is not None and written.spec.api != "Scripted":
        return _as_written(template, written, settings)
    if (own := _users_own(settings)) is not None:
        return _instead(template, name, own)
    if written is not None:
        return Choice(template, written)
    raise Invalid(
        "no model answers this run: set ANTHROPIC_API_KEY, or OPENAI_API_KEY (with OPENAI_BASE_URL for another "
        "vendor), or name a ModelProvider in the files"
    )


@dataclass(frozen=True, slots=True)
class _Own:
    api: Api
    model: str
    base_url: str
    key: str

    @property
    def key_variable(self) -> str:
        return KEY_VARIABLES[self.api]

    @property
    def url_variable(self) -> str:
        return URL_VARIABLES[self.api]


def _users_own(settings: LocalSettings) -> _Own | None:
    """The model the user's environment pays for; Anthropic's when both keys are there."""
    if settings.anthropic_api_key:
        model = settings.model or DEFAULT_MODELS["AnthropicMessages"]
        return _Own("AnthropicMessages", model, settings.anthropic_base_url, settings.anthropic_api_key)
    if settings.openai_api_key:
        if settings.openai_base_url and not settings.model:
            raise Invalid(f"{MODEL_VARIABLE} is not set: expected the name of a model at {settings.openai_base_url}")
        model = settings.model or DEFAULT_MODELS["OpenAIChatCompletions"]
        return _Own("OpenAIChatCompletions", model, settings.openai_base_url, settings.openai_api_key)
    return None


def _instead(template: AgentTemplate, name: str, own: _Own) -> Choice:
    """The user's model under the name that the template asks for, so that everything else stays as written."""
    provider = _provider_of(own)
    provider = provider.model_copy(update={"metadata": provider.metadata.model_copy(update={"name": name})})
    spec = template.spec.model_copy(update={"model": ModelRef(provider=name)})
    return Choice(
        template.model_copy(update={"spec": spec}),
        provider,
        _header_safe(own.key, own.key_variable),
        f"{own.model} answers, paid with {own.key_variable}" + (f", at {own.base_url}" if own.base_url else ""),
    )


def _provider_of(own: _Own) -> ModelProvider:
    """Raises Invalid, naming the variable, for a value that no manifest may have either."""
    try:
        return defaults.provider(own.api, own.model, own.base_url or None)
    except ValidationError as fault:
        problems = []
        for each in fault.errors():
            variable = MODEL_VARIABLE if "models" in each["loc"] or "name" in each["loc"] else own.url_variable
            problems.append(sentence({**each, "loc": (variable,)}, ModelProvider))
        raise Invalid(*problems) from None


def _as_written(template: AgentTemplate, provider: ModelProvider, settings: LocalSettings) -> Choice:
    """The provider of the files. Only one that asks for a key (secretRef) is given the user's."""
    spec = provider.spec
    if spec.secret_ref is None:
        return Choice(template, provider)
    variable = KEY_VARIABLES[spec.api]
    key = settings.anthropic_api_key if spec.api == "AnthropicMessages" else settings.openai_api_key
    if not key:
        raise Invalid(
            f"ModelProvider/{provider.metadata.name}: spec.secretRef asks for a key, which `towline run` takes from "
            f"{variable}; it is not set"
        )
    # A manifest from elsewhere could send the key anywhere: say so where a person sees it.
    note = f"the key in {variable} is sent to {spec.base_url}" if spec.base_url else ""
    return Choice(template, provider, _header_safe(key, variable), note)


def _header_safe(key: str, variable: str) -> str:
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise Invalid(f"{variable} holds white space or characters that no API key has")
    return key
