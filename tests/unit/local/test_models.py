"""Who answers a local run, and where the user's key goes."""

from typing import Any

import pytest

from towline.api import defaults
from towline.api.agenttemplate import AgentTemplate, AgentTemplateSpec, ModelRef
from towline.api.common import ObjectMeta, SecretRef
from towline.api.modelprovider import ModelProvider, ModelProviderSpec, ProviderModel, Script, ScriptedStep
from towline.errors import Invalid
from towline.local.models import DEFAULT_MODELS, choose_model
from towline.settings import LocalSettings

SCRIPTED = ModelProvider(
    metadata=ObjectMeta(name="demo"),
    spec=ModelProviderSpec(api="Scripted", scripted=Script(steps=(ScriptedStep(text="Hello."),))),
)


def template(provider: str, model: str | None = None) -> AgentTemplate:
    spec = AgentTemplateSpec(system_prompt="Be brief.", model=ModelRef(provider=provider, name=model))
    return AgentTemplate(metadata=ObjectMeta(name="t"), spec=spec)


def written(**spec: Any) -> ModelProvider:
    """A provider that a person wrote."""
    whole = {"api": "AnthropicMessages", "models": (ProviderModel(name="m"),), **spec}
    return ModelProvider(metadata=ObjectMeta(name="paid"), spec=ModelProviderSpec(**whole))


def test_without_a_key_the_script_answers() -> None:
    choice = choose_model(template("demo"), [SCRIPTED], LocalSettings())
    assert choice.provider is SCRIPTED
    assert choice.key is None


def test_with_an_anthropic_key_that_model_answers_under_the_same_name() -> None:
    choice = choose_model(template("demo", "scripted"), [SCRIPTED], LocalSettings(anthropic_api_key="k"))
    assert choice.provider.metadata.name == "demo"
    assert choice.provider.spec.api == "AnthropicMessages"
    assert choice.provider.spec.models == (ProviderModel(name=DEFAULT_MODELS["AnthropicMessages"]),)
    assert choice.template.spec.model == ModelRef(provider="demo")
    assert choice.template.spec.system_prompt == "Be brief."
    assert choice.key == "k"


def test_with_an_openai_key_and_a_base_url_that_server_answers() -> None:
    settings = LocalSettings(openai_api_key="k", openai_base_url="http://localhost:11434/v1", model="qwen")
    choice = choose_model(template("demo"), [SCRIPTED], settings)
    assert choice.provider.spec.api == "OpenAIChatCompletions"
    assert choice.provider.spec.base_url == "http://localhost:11434/v1"
    assert choice.provider.spec.models == (ProviderModel(name="qwen"),)
    assert "http://localhost:11434/v1" in choice.note


def test_a_base_url_without_a_model_is_refused() -> None:
    with pytest.raises(Invalid, match="TOWLINE_MODEL is not set"):
        choose_model(template("demo"), [SCRIPTED], LocalSettings(openai_api_key="k", openai_base_url="http://x/v1"))


def test_the_default_provider_is_the_users_own_model() -> None:
    settings = LocalSettings(openai_api_key="k", model="my-model")
    choice = choose_model(defaults.TEMPLATE, [], settings)
    assert choice.provider.metadata.name == "default"
    assert choice.provider.spec.models == (ProviderModel(name="my-model"),)


def test_the_default_provider_without_a_key_is_refused_with_what_to_set() -> None:
    with pytest.raises(Invalid, match="set ANTHROPIC_API_KEY, or OPENAI_API_KEY"):
        choose_model(defaults.TEMPLATE, [], LocalSettings())


def test_a_provider_that_does_not_exist_is_refused_even_with_a_key() -> None:
    with pytest.raises(Invalid, match='"dem" does not exist; did you mean "demo"'):
        choose_model(template("dem"), [SCRIPTED], LocalSettings(anthropic_api_key="k"))


def test_a_written_provider_that_asks_for_a_key_gets_the_matching_one() -> None:
    provider = written(secret_ref=SecretRef(name="s"))
    choice = choose_model(template("paid"), [provider], LocalSettings(anthropic_api_key="a", openai_api_key="o"))
    assert choice.provider is provider
    assert choice.key == "a"


def test_where_a_manifest_sends_the_key_is_said() -> None:
    provider = written(secret_ref=SecretRef(name="s"), base_url="https://elsewhere.example")
    choice = choose_model(template("paid"), [provider], LocalSettings(anthropic_api_key="a"))
    assert choice.note == "the key in ANTHROPIC_API_KEY is sent to https://elsewhere.example"


def test_a_missing_key_is_named() -> None:
    provider = written(api="OpenAIChatCompletions", secret_ref=SecretRef(name="s"))
    with pytest.raises(Invalid, match=r"ModelProvider/paid: spec\.secretRef asks for a key.*OPENAI_API_KEY"):
        choose_model(template("paid"), [provider], LocalSettings(anthropic_api_key="a"))


def test_a_written_provider_that_asks_for_none_gets_none() -> None:
    choice = choose_model(template("paid"), [written()], LocalSettings(anthropic_api_key="a"))
    assert choice.key is None


@pytest.mark.parametrize("key", ["two words", "new\nline", "schlüssel"])
def test_a_key_that_would_break_a_header_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(Invalid) as refused:
        choose_model(template("demo"), [SCRIPTED], LocalSettings(anthropic_api_key=key))
    assert key not in str(refused.value)


def test_a_choice_never_shows_its_key() -> None:
    choice = choose_model(template("demo"), [SCRIPTED], LocalSettings(anthropic_api_key="sk-secret"))
    assert "sk-secret" not in repr(choice)
    assert "sk-secret" not in choice.note
