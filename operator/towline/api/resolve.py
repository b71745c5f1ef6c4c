"""A run and the kinds it names to the snapshot that harness and gateway work with; and the lookups before that.

Called by whoever accepts runs: the operator, or the local launcher. What the run asks for can only narrow what its
template grants. Pure; every fault is reported at once.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from towline.api import snapshot
from towline.api.agentrun import AgentRun
from towline.api.agenttemplate import AgentTemplate, AgentTemplateSpec
from towline.api.common import PLATFORM_NAMESPACE, TOOLS, Limits, ToolPolicy
from towline.api.fields import did_you_mean, listed
from towline.api.modelprovider import ModelProvider, ProviderModel
from towline.api.quantities import parse_bytes, parse_millis
from towline.api.sandboxclass import SandboxClass, WorkspaceVolume
from towline.errors import Invalid

Report = Callable[[str], None]

_PLACEHOLDER = re.compile(r"\{\{ *params\.([A-Za-z0-9_]+) *\}\}")


def find_template(name: str, namespace: str, templates: Sequence[AgentTemplate]) -> AgentTemplate:
    """The template of the run's namespace, else the platform's. A template without a namespace is in the run's."""
    for place in (namespace, PLATFORM_NAMESPACE):
        for template in templates:
            if template.metadata.name == name and (template.metadata.namespace or namespace) == place:
                return template
    usable = [each for each in templates if each.metadata.namespace in (None, namespace, PLATFORM_NAMESPACE)]
    names = list(dict.fromkeys(each.metadata.name for each in usable))
    raise Invalid(
        f'AgentTemplate "{name}" does not exist in {namespace} or {PLATFORM_NAMESPACE}; {did_you_mean(name, names)}'
    )


def find_provider(name: str, providers: Sequence[ModelProvider]) -> ModelProvider:
    """The first provider of that name."""
    found = next((each for each in providers if each.metadata.name == name), None)
    if found is None:
        names = [each.metadata.name for each in providers]
        raise Invalid(f'ModelProvider "{name}" does not exist; {did_you_mean(name, names)}')
    return found


def find_class(name: str, classes: Sequence[SandboxClass]) -> SandboxClass:
    """The first sandbox class of that name."""
    found = next((each for each in classes if each.metadata.name == name), None)
    if found is None:
        raise Invalid(
            f'SandboxClass "{name}" does not exist; {did_you_mean(name, [each.metadata.name for each in classes])}'
        )
    return found


def resolve(
    run: AgentRun,
    *,
    template: AgentTemplate,
    provider: ModelProvider,
    sandbox_class: SandboxClass,
    uid: str,
    namespace: str,
    source_uid: str | None = None,
) -> snapshot.Snapshot:
    """The snapshot of `run`. Raises Invalid with a sentence for everything that does not fit together.

    `source_uid` is the run that spec.continueFrom names; a caller who cannot find it does not get here.
    """
    problems: list[str] = []

    def in_run(sentence: str) -> None:
        problems.append(f"AgentRun/{run.metadata.name}: {sentence}")

    def in_template(sentence: str) -> None:
        problems.append(f"AgentTemplate/{template.metadata.name}: {sentence}")

    def in_provider(sentence: str) -> None:
        problems.append(f"ModelProvider/{provider.metadata.name}: {sentence}")

    if run.spec.prompt is None:
        in_run("spec.promptFrom cannot be read yet; expected spec.prompt")
    if template.spec.mcp_servers:
        in_template("spec.mcpServers cannot be served yet; expected an empty list")
    if provider.spec.allowed_namespaces is not None and namespace not in provider.spec.allowed_namespaces:
        in_provider(f"namespace {namespace} may not use it; spec.allowedNamespaces has {_all(provider)}")
    limits = _limits(run.spec.limits, template.spec.limits)
    model = _model(template, provider, in_template)
    if limits.max_cost_micro_usd is not None and model.price is None and provider.spec.api != "Scripted":
        in_provider(f'the model "{model.name}" has no price, which limits.maxCostMicroUSD needs')
    _check_tools(run.spec.tool_policy, template.spec, in_run, in_template)
    prompt = _filled(run.spec.prompt or "", run.spec.params, "spec.prompt", in_run)
    if run.spec.prompt is not None and not prompt.strip():
        in_run("spec.prompt is blank; expected some words")
    system_prompt = _filled(template.spec.system_prompt, run.spec.params, "spec.systemPrompt", in_template)
    if problems:
        raise Invalid(*problems)
    return snapshot.Snapshot(
        namespace=namespace,
        name=run.metadata.name,
        uid=uid,
        prompt=prompt,
        interactive=run.spec.interactive,
        idle_policy=snapshot.IdlePolicy(**run.spec.idle_policy.model_dump()),
        continue_from=_source(run, source_uid, namespace),
        system_prompt=system_prompt,
        model=_snapshot_model(model, provider),
        tools=_offered_tools(run, template.spec),
        policy=_policy(run.spec.tool_policy, template.spec),
        limits=snapshot.Limits(**limits.model_dump()),
        active_deadline_seconds=_smaller(run.spec.active_deadline_seconds, template.spec.active_deadline_seconds),
        backoff_limit=run.spec.backoff_limit,
        sandbox=_snapshot_sandbox(run, sandbox_class),
        workspace=tuple(snapshot.WorkspaceFile(**file.model_dump()) for file in run.spec.workspace.files),
    )


def _source(run: AgentRun, uid: str | None, namespace: str) -> snapshot.ContinueFrom | None:
    if run.spec.continue_from is None:
        return None
    assert uid is not None, "spec.continueFrom is looked up before"
    return snapshot.ContinueFrom(namespace=namespace, uid=uid, seq=run.spec.continue_from.seq)


def _limits(run: Limits, template: Limits) -> Limits:
    """The smaller of each pair."""
    return Limits(**{name: _smaller(getattr(run, name), getattr(template, name)) for name in Limits.model_fields})


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _check_tools(policy: ToolPolicy, template: AgentTemplateSpec, in_run: Report, in_template: Report) -> None:
    for position, tool in enumerate(template.tools):
        if tool not in TOOLS:
            in_template(f'spec.tools[{position}] is "{tool}", which is no tool; {did_you_mean(tool, TOOLS)}')
    _check_rules(template.tool_policy, TOOLS, "no tool", in_template)
    _check_rules(policy, template.tools, "no tool of the template", in_run)
    for position, rule in enumerate(policy.rules):
        if rule.action == "Allow" and rule.tool in template.tools and template.tool_policy.action(rule.tool) == "Deny":
            in_run(f'spec.toolPolicy.rules[{position}] allows "{rule.tool}", which the template denies; expected Deny')


def _check_rules(policy: ToolPolicy, known: Sequence[str], otherwise: str, report: Report) -> None:
    for position, rule in enumerate(policy.rules):
        if rule.tool not in known:
            hint = did_you_mean(rule.tool, known)
            report(f'spec.toolPolicy.rules[{position}].tool is "{rule.tool}", which is {otherwise}; {hint}')


def _offered_tools(run: AgentRun, template: AgentTemplateSpec) -> tuple[str, ...]:
    """What the template lists. A denied tool is offered too: the model reads the denial, and the log records it."""
    return tuple(tool for tool in template.tools if run.spec.sandbox.policy != "Never" or tool not in TOOLS)


def _policy(run: ToolPolicy, template: AgentTemplateSpec) -> snapshot.Policy:
    """What the run denies, then the template's own rules: a call passes only if both allow it."""
    denied = [snapshot.Rule(tool=tool, action="Deny") for tool in template.tools if run.action(tool) == "Deny"]
    rules = [snapshot.Rule(tool=rule.tool, action=rule.action) for rule in template.tool_policy.rules]
    return snapshot.Policy(default=template.tool_policy.default, rules=(*denied, *rules))


def _model(template: AgentTemplate, provider: ModelProvider, in_template: Report) -> ProviderModel:
    """The model the template names, as the provider lists it; a provider that lists none takes any name."""
    name, models = template.spec.model.name, provider.spec.models
    if name is None and models:
        return models[0]
    if name is None and provider.spec.api != "Scripted":
        in_template(f"spec.model.name is missing, and ModelProvider/{provider.metadata.name} lists no models")
    if name is not None and models:
        if (found := next((model for model in models if model.name == name), None)) is not None:
            return found
        hint = did_you_mean(name, [model.name for model in models])
        in_template(f'spec.model.name is "{name}", which ModelProvider/{provider.metadata.name} does not list; {hint}')
    return ProviderModel(name=name or "scripted")


def _snapshot_model(model: ProviderModel, provider: ModelProvider) -> snapshot.Model:
    price, script = model.price, provider.spec.scripted
    return snapshot.Model(
        api=provider.spec.api,
        provider=provider.metadata.name,
        name=model.name,
        base_url=provider.spec.base_url or "",
        max_output_tokens=model.max_output_tokens,
        context_tokens=model.context_tokens,
        request_timeout_seconds=provider.spec.request_timeout_seconds,
        price=snapshot.Price(**price.model_dump()) if price else snapshot.Price(),
        script=tuple(snapshot.ScriptedStep(**step.model_dump()) for step in script.steps) if script else (),
    )


def _snapshot_sandbox(run: AgentRun, sandbox_class: SandboxClass) -> snapshot.Sandbox:
    spec, resources = sandbox_class.spec, sandbox_class.spec.resources
    rootfs = spec.local.rootfs if spec.local else None
    return snapshot.Sandbox(
        policy=run.spec.sandbox.policy,
        class_name=sandbox_class.metadata.name,
        provider=spec.provider,
        runtime_class_name=spec.runtime_class_name or "",
        image=(rootfs if spec.provider == "local" else spec.image) or "",
        exec_timeout_seconds=spec.exec_timeout_seconds,
        start_timeout_seconds=spec.start_timeout_seconds,
        network=spec.network.preset,
        memory_bytes=parse_bytes(resources.memory) if resources.memory else None,
        cpu_millis=parse_millis(resources.cpu) if resources.cpu else None,
        disk_bytes=parse_bytes(resources.disk) if resources.disk else None,
        max_processes=resources.max_processes,
        retain=run.spec.sandbox.retain,
        volume=_volume(spec.workspace.volume),
    )


def _volume(wanted: WorkspaceVolume | None) -> snapshot.Volume | None:
    if wanted is None:
        return None
    return snapshot.Volume(storage_class_name=wanted.storage_class_name or "", size_bytes=parse_bytes(wanted.size))


def _filled(text: str, params: Mapping[str, str], field: str, report: Report) -> str:
    """`text` with each {{params.NAME}} replaced, once: a value is never searched for placeholders."""
    unknown = [name for name in dict.fromkeys(_PLACEHOLDER.findall(text)) if name not in params]
    for name in unknown:
        report(f"{field} has the placeholder {{{{params.{name}}}}}, and spec.params of the run has no {name}")
    return _PLACEHOLDER.sub(lambda match: params.get(match[1], match[0]), text)


def _all(provider: ModelProvider) -> str:
    return listed(provider.spec.allowed_namespaces or ()) or "none"
