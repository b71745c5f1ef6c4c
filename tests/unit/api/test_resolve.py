"""What a run and the kinds it names become, and what does not fit together."""

from typing import Any

import pytest

from towline.api import defaults, snapshot
from towline.api.agentrun import AgentRun
from towline.api.agenttemplate import AgentTemplate
from towline.api.common import TOOLS
from towline.api.modelprovider import ModelProvider
from towline.api.resolve import find_class, find_provider, find_template, resolve
from towline.api.sandboxclass import SandboxClass
from towline.api.snapshot import Policy, Rule, Snapshot
from towline.errors import Invalid

PRICE = {"inputMicroUSD": 3_000_000, "outputMicroUSD": 15_000_000, "cachedInputMicroUSD": 300_000}


def agent_run(**spec: Any) -> AgentRun:
    return AgentRun.from_wire({"metadata": {"name": "hello"}, "spec": {"prompt": "Say hello."} | spec})


def agent_template(**spec: Any) -> AgentTemplate:
    return AgentTemplate.from_wire({"metadata": {"name": "coder"}, "spec": spec})


def model_provider(**spec: Any) -> ModelProvider:
    models = [{"name": "large", "price": PRICE, "maxOutputTokens": 100}, {"name": "small"}]
    spec = {"api": "AnthropicMessages", "models": models} | spec
    return ModelProvider.from_wire({"metadata": {"name": "vendor"}, "spec": spec})


def sandbox_class(**spec: Any) -> SandboxClass:
    return SandboxClass.from_wire({"metadata": {"name": "small"}, "spec": spec})


def resolved(
    run: AgentRun | None = None,
    template: AgentTemplate | None = None,
    provider: ModelProvider | None = None,
    kind: SandboxClass | None = None,
) -> Snapshot:
    return resolve(
        run or agent_run(),
        template=template or agent_template(),
        provider=provider or model_provider(),
        sandbox_class=kind or sandbox_class(),
        uid="u-1",
        namespace="team-a",
    )


def test_everything_that_a_run_and_its_kinds_say_arrives_in_the_snapshot() -> None:
    found = resolved(
        agent_run(
            interactive=True,
            limits={"maxTurns": 3, "maxCostMicroUSD": 500},
            activeDeadlineSeconds=60,
            backoffLimit=2,
            sandbox={"policy": "Eager", "retain": "Suspend"},
            idlePolicy={"suspendAfterSeconds": 30, "finishAfterSeconds": 60},
            workspace={"files": [{"path": "a.sh", "content": "true\n", "executable": True}]},
        ),
        agent_template(systemPrompt="Be brief.", model={"provider": "vendor", "name": "large"}, tools=["exec"]),
        model_provider(baseURL="http://proxy:8080", requestTimeoutSeconds=30),
        sandbox_class(
            image="node:22",
            network={"preset": "Internet"},
            execTimeoutSeconds=10,
            startTimeoutSeconds=20,
            resources={"cpu": "500m", "memory": "1Gi", "disk": "2G", "maxProcesses": 64},
        ),
    )
    assert found == Snapshot(
        namespace="team-a",
        name="hello",
        uid="u-1",
        prompt="Say hello.",
        interactive=True,
        idle_policy=snapshot.IdlePolicy(suspend_after_seconds=30, finish_after_seconds=60),
        system_prompt="Be brief.",
        model=snapshot.Model(
            api="AnthropicMessages",
            provider="vendor",
            name="large",
            base_url="http://proxy:8080",
            max_output_tokens=100,
            request_timeout_seconds=30,
            price=snapshot.Price(
                input_micro_usd=3_000_000, output_micro_usd=15_000_000, cached_input_micro_usd=300_000
            ),
        ),
        tools=("exec",),
        policy=Policy(default="Allow"),
        limits=snapshot.Limits(max_turns=3, max_cost_micro_usd=500),
        active_deadline_seconds=60,
        backoff_limit=2,
        sandbox=snapshot.Sandbox(
            policy="Eager",
            class_name="small",
            provider="pod",
            image="node:22",
            exec_timeout_seconds=10,
            start_timeout_seconds=20,
            network="Internet",
            memory_bytes=1024**3,
            cpu_millis=500,
            disk_bytes=2 * 10**9,
            max_processes=64,
            retain="Suspend",
        ),
        workspace=(snapshot.WorkspaceFile(path="a.sh", content="true\n", executable=True),),
    )


def test_a_run_continues_from_the_run_that_its_name_was_looked_up_for() -> None:
    found = resolve(
        agent_run(continueFrom={"name": "earlier", "seq": 7}),
        template=agent_template(),
        provider=model_provider(),
        sandbox_class=sandbox_class(),
        uid="u-2",
        namespace="team-a",
        source_uid="u-1",
    )
    assert found.continue_from == snapshot.ContinueFrom(namespace="team-a", uid="u-1", seq=7)


def test_the_model_s_context_is_the_provider_s_word_or_a_usual_one() -> None:
    given = model_provider(models=[{"name": "large", "contextTokens": 1_000_000}, {"name": "small"}])
    assert resolved(provider=given).model.context_tokens == 1_000_000
    assert resolved(template=agent_template(model={"name": "small"}), provider=given).model.context_tokens == 200_000


def test_a_snapshot_survives_its_stored_form() -> None:
    found = resolved()
    assert Snapshot.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("of_run", "of_template", "expected"),
    [
        ({}, {}, None),
        ({"maxTurns": 3}, {}, 3),
        ({}, {"maxTurns": 5}, 5),
        ({"maxTurns": 3}, {"maxTurns": 5}, 3),
        ({"maxTurns": 9}, {"maxTurns": 5}, 5),
    ],
)
def test_the_smaller_limit_holds(of_run: dict[str, int], of_template: dict[str, int], expected: int | None) -> None:
    found = resolved(agent_run(limits=of_run), agent_template(limits=of_template))
    assert found.limits.max_turns == expected


def test_a_limit_of_nothing_is_smaller_than_none() -> None:
    assert resolved(agent_run(limits={"maxToolCalls": 0}), agent_template()).limits.max_tool_calls == 0


def test_the_earlier_deadline_holds() -> None:
    found = resolved(agent_run(activeDeadlineSeconds=60), agent_template(activeDeadlineSeconds=30))
    assert found.active_deadline_seconds == 30


def allowed(policy: Policy) -> list[str]:
    """The tools that the policy lets pass, read as the snapshot says: the first rule that names one decides."""
    return [
        tool
        for tool in TOOLS
        if next((rule.action for rule in policy.rules if rule.tool == tool), policy.default) == "Allow"
    ]


@pytest.mark.parametrize(
    ("of_run", "of_template", "expected"),
    [
        ({}, {}, list(TOOLS)),
        ({}, {"default": "Deny", "rules": [{"tool": "exec", "action": "Allow"}]}, ["exec"]),
        ({"rules": [{"tool": "exec", "action": "Deny"}]}, {}, list(TOOLS[1:])),
        ({"default": "Deny"}, {}, []),
        ({"default": "Deny", "rules": [{"tool": "search", "action": "Allow"}]}, {}, ["search"]),
        (
            {"rules": [{"tool": "exec", "action": "Deny"}]},
            {"default": "Deny", "rules": [{"tool": tool, "action": "Allow"} for tool in ("exec", "search")]},
            ["search"],
        ),
    ],
)
def test_a_call_passes_only_if_run_and_template_allow_it(
    of_run: dict[str, Any], of_template: dict[str, Any], expected: list[str]
) -> None:
    found = resolved(agent_run(toolPolicy=of_run), agent_template(toolPolicy=of_template))
    assert allowed(found.policy) == expected


def test_the_rules_of_the_template_keep_their_places_when_the_run_denies_nothing() -> None:
    rules = [{"tool": "search", "action": "Allow"}, {"tool": "exec", "action": "Deny"}]
    found = resolved(template=agent_template(toolPolicy={"rules": rules}))
    assert found.policy.rules == (Rule(tool="search", action="Allow"), Rule(tool="exec", action="Deny"))


def test_a_denied_tool_is_offered_so_that_its_denial_is_recorded() -> None:
    assert resolved(agent_run(toolPolicy={"default": "Deny"})).tools == TOOLS


def test_a_run_without_a_sandbox_is_offered_no_tool_that_needs_one() -> None:
    assert resolved(agent_run(sandbox={"policy": "Never"})).tools == ()


def test_the_first_listed_model_is_the_default_and_a_list_that_is_empty_takes_any_name() -> None:
    assert resolved().model.name == "large"
    named = agent_template(model={"name": "anything"})
    assert resolved(template=named, provider=model_provider(models=[])).model.name == "anything"


def test_a_scripted_provider_needs_no_model_name_and_costs_nothing() -> None:
    calls = [{"name": "exec", "arguments": {"command": "true", "nested": [None, {"a": 1.5}]}}]
    script = {"steps": [{"text": "On it.", "toolCalls": calls}, {"text": "Done.", "chunkMilliseconds": 5}]}
    provider = model_provider(api="Scripted", models=[], scripted=script)
    found = resolved(agent_run(limits={"maxCostMicroUSD": 1}), provider=provider)
    assert found.model.name == "scripted"
    assert found.model.script[0].tool_calls[0].arguments == calls[0]["arguments"]
    assert found.model.script[1] == snapshot.ScriptedStep(text="Done.", chunk_milliseconds=5)


def test_parameters_are_put_into_both_prompts_once() -> None:
    found = resolved(
        agent_run(
            prompt="Greet {{params.who}}, {{ params.who }}; {{params}} and {{other.x}} stay.",
            params={"who": "{{params.mood}}", "mood": "kind"},
        ),
        agent_template(systemPrompt="Be {{params.mood}}."),
    )
    assert found.prompt == "Greet {{params.mood}}, {{params.mood}}; {{params}} and {{other.x}} stay."
    assert found.system_prompt == "Be kind."


def test_a_local_class_has_its_folder_in_place_of_an_image() -> None:
    local = sandbox_class(provider="local", local={"rootfs": "/srv/root"}, image="node:22")
    assert resolved(kind=local).sandbox.image == "/srv/root"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"run": agent_run(toolPolicy={"rules": [{"tool": "bash", "action": "Deny"}]})},
            'AgentRun/hello: spec.toolPolicy.rules[0].tool is "bash", which is no tool of the template; '
            "known: exec, read_file, write_file, edit_file, list_dir and search",
        ),
        (
            {
                "run": agent_run(toolPolicy={"rules": [{"tool": "exec", "action": "Allow"}]}),
                "template": agent_template(toolPolicy={"default": "Deny"}),
            },
            'AgentRun/hello: spec.toolPolicy.rules[0] allows "exec", which the template denies; expected Deny',
        ),
        (
            {"template": agent_template(tools=["readfile"])},
            'AgentTemplate/coder: spec.tools[0] is "readfile", which is no tool; did you mean "read_file"?',
        ),
        (
            {"template": agent_template(toolPolicy={"rules": [{"tool": "Exec", "action": "Deny"}]})},
            'AgentTemplate/coder: spec.toolPolicy.rules[0].tool is "Exec", which is no tool; did you mean "exec"?',
        ),
        (
            {"template": agent_template(model={"name": "larger"})},
            'AgentTemplate/coder: spec.model.name is "larger", which ModelProvider/vendor does not list; '
            'did you mean "large"?',
        ),
        (
            {"provider": model_provider(models=[])},
            "AgentTemplate/coder: spec.model.name is missing, and ModelProvider/vendor lists no models",
        ),
        (
            {
                "run": agent_run(limits={"maxCostMicroUSD": 1}),
                "template": agent_template(model={"name": "small"}),
            },
            'ModelProvider/vendor: the model "small" has no price, which limits.maxCostMicroUSD needs',
        ),
        (
            {"provider": model_provider(allowedNamespaces=["team-b", "team-c"])},
            "ModelProvider/vendor: namespace team-a may not use it; spec.allowedNamespaces has team-b and team-c",
        ),
        (
            {"provider": model_provider(allowedNamespaces=[])},
            "ModelProvider/vendor: namespace team-a may not use it; spec.allowedNamespaces has none",
        ),
        (
            {"run": agent_run(prompt="Greet {{params.who}}.")},
            "AgentRun/hello: spec.prompt has the placeholder {{params.who}}, and spec.params of the run has no who",
        ),
        (
            {"run": agent_run(prompt=" {{params.who}}\n", params={"who": ""})},
            "AgentRun/hello: spec.prompt is blank; expected some words",
        ),
        (
            {"template": agent_template(mcpServers=[{"name": "docs", "url": "https://docs.example/mcp"}])},
            "AgentTemplate/coder: spec.mcpServers cannot be served yet; expected an empty list",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        resolved(**parts)
    assert refused.value.problems == (sentence,)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        resolved(agent_run(prompt="{{params.a}} {{params.b}}"), agent_template(tools=["x"]))
    assert len(refused.value.problems) == 3


def test_a_prompt_that_lies_elsewhere_cannot_be_read_yet() -> None:
    run = AgentRun.from_wire(
        {"metadata": {"name": "hello"}, "spec": {"promptFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}}
    )
    with pytest.raises(Invalid, match=r"AgentRun/hello: spec.promptFrom cannot be read yet; expected spec.prompt"):
        resolved(run)


def template_in(namespace: str | None, name: str = "coder") -> AgentTemplate:
    return AgentTemplate.from_wire({"metadata": {"name": name, "namespace": namespace}})


def test_a_template_is_looked_up_in_the_run_s_namespace_and_then_among_the_platform_s() -> None:
    platform, own, foreign = template_in("towline-system"), template_in("team-a"), template_in("team-b")
    assert find_template("coder", "team-a", [platform, own]) is own
    assert find_template("coder", "team-a", [foreign, platform]) is platform
    assert find_template("coder", "team-a", [platform, unplaced := template_in(None)]) is unplaced


def test_a_name_that_does_not_exist_is_refused_with_what_does() -> None:
    with pytest.raises(Invalid) as refused:
        find_template("codr", "team-a", [template_in("team-a"), template_in("team-b", "codr"), defaults.TEMPLATE])
    assert refused.value.problems == (
        'AgentTemplate "codr" does not exist in team-a or towline-system; did you mean "coder"?',
    )
    with pytest.raises(Invalid, match='ModelProvider "x" does not exist; known: vendor'):
        find_provider("x", [model_provider()])
    with pytest.raises(Invalid, match='SandboxClass "x" does not exist; there is none'):
        find_class("x", [])


def test_the_built_in_defaults_make_the_smallest_run_whole() -> None:
    found = resolve(
        agent_run(),
        template=find_template("default", "local", [defaults.TEMPLATE]),
        provider=defaults.provider("OpenAIChatCompletions", "some-model", "http://127.0.0.1:11434/v1"),
        sandbox_class=find_class("default", [defaults.SANDBOX_CLASS]),
        uid="u-1",
        namespace="local",
    )
    assert found.model.name == "some-model"
    assert found.sandbox.provider == "local"
    assert found.tools == TOOLS
    assert "sandbox" in found.system_prompt


def test_any_class_can_be_made_locally_without_its_image_and_runtime() -> None:
    cluster = sandbox_class(
        image="node:22", runtimeClassName="gvisor", execTimeoutSeconds=7, network={"preset": "Internet"}
    )
    local = defaults.as_local(cluster)
    assert (local.spec.provider, local.spec.image, local.spec.runtime_class_name) == ("local", None, None)
    assert (local.spec.exec_timeout_seconds, local.spec.network.preset) == (7, "Internet")
    assert SandboxClass.from_wire(local.model_dump(mode="json", by_alias=True)) == local
