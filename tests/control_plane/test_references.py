"""What a run refers to: it may be missing, appear later, not fit, or change meanwhile."""

from tests.control_plane.played import working
from tests.control_plane.stage import Stage
from towline.kube.kinds import AGENT_TEMPLATE, MODEL_PROVIDER, SANDBOX_CLASS


async def test_a_missing_template_heals_when_it_appears(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(templateRef={"name": "coder"})
    told = await run.until_condition("Accepted", "False", "TemplateNotFound")
    assert "coder" in told["message"]

    await stage.apply(AGENT_TEMPLATE.name, "coder", {}, namespace=stage.namespace)

    await run.harness()
    await run.until_condition("Accepted", "True")


async def test_a_missing_provider_and_class_heal_when_they_appear(stage: Stage) -> None:
    await stage.started()
    spec = {"model": {"provider": f"p-{stage.tag}"}, "sandboxClassName": f"c-{stage.tag}"}
    await stage.apply(AGENT_TEMPLATE.name, "other", spec, namespace=stage.namespace)
    run = await stage.run(templateRef={"name": "other"})
    await run.until_condition("Accepted", "False", "ProviderNotFound")

    steps = [{"text": "hi"}]
    await stage.apply(MODEL_PROVIDER.name, f"p-{stage.tag}", {"api": "Scripted", "scripted": {"steps": steps}})
    await run.until_condition("Accepted", "False", "SandboxClassNotFound")
    await stage.apply(SANDBOX_CLASS.name, f"c-{stage.tag}", {})

    await run.harness()


async def test_what_does_not_fit_together_is_said_in_full(stage: Stage) -> None:
    await stage.started()

    run = await stage.run(prompt="do {{params.this}} and {{params.that}}")

    told = await run.until_condition("Accepted", "False", "InvalidSpec")
    assert "this" in told["message"]
    assert "that" in told["message"]


async def test_a_class_whose_sandboxes_nobody_here_can_make_is_refused_before_anything_starts(stage: Stage) -> None:
    await stage.started()
    await stage.apply(SANDBOX_CLASS.name, f"c-{stage.tag}", {"provider": "agent-sandbox"})

    run = await stage.run(sandbox={"className": f"c-{stage.tag}"})

    told = await run.until_condition("Accepted", "False", "InvalidSpec")
    assert told["message"] == (
        f'SandboxClass/c-{stage.tag}: spec.provider is "agent-sandbox", which this operator has no adapter for; '
        'expected "pod"'
    )
    await stage.apply(SANDBOX_CLASS.name, f"c-{stage.tag}", {"provider": "pod"})
    await run.harness()


async def test_a_provider_that_is_not_for_the_namespace_is_refused(stage: Stage) -> None:
    await stage.started()
    steps = [{"text": "hi"}]
    await stage.apply(
        MODEL_PROVIDER.name,
        f"p-{stage.tag}",
        {"api": "Scripted", "scripted": {"steps": steps}, "allowedNamespaces": ["elsewhere"]},
    )
    await stage.apply(AGENT_TEMPLATE.name, "t", {"model": {"provider": f"p-{stage.tag}"}}, namespace=stage.namespace)

    run = await stage.run(templateRef={"name": "t"})

    await run.until_condition("Accepted", "False", "NotAllowed")


async def test_a_missing_secret_is_named(stage: Stage) -> None:
    await stage.started()
    provider = {"api": "AnthropicMessages", "models": [{"name": "m"}], "secretRef": {"name": "key"}}
    await stage.apply(MODEL_PROVIDER.name, f"p-{stage.tag}", provider)
    await stage.apply(AGENT_TEMPLATE.name, "t", {"model": {"provider": f"p-{stage.tag}"}}, namespace=stage.namespace)

    run = await stage.run(templateRef={"name": "t"})

    told = await run.until_condition("Accepted", "False", "SecretNotFound")
    assert f'"key" does not exist in {stage.harness}' in told["message"]


async def test_a_later_edit_of_the_template_changes_no_accepted_run(stage: Stage) -> None:
    await stage.started()
    run = await stage.run(suspend=True)
    digest = (await run.until_condition("Accepted", "True")) and (await run.status())["resolved"]["digest"]

    await stage.apply(AGENT_TEMPLATE.name, "default", {"systemPrompt": "other"}, namespace=stage.system)
    await run.change(suspend=False)
    await run.harness()

    assert (await run.status())["resolved"]["digest"] == digest


async def test_a_provider_that_was_deleted_meanwhile_is_said_when_the_next_harness_needs_it(stage: Stage) -> None:
    await stage.started()
    name = f"p-{stage.tag}"
    scripted = {"api": "Scripted", "scripted": {"steps": [{"text": "hi"}]}}
    await stage.apply(MODEL_PROVIDER.name, name, scripted)
    await stage.apply(AGENT_TEMPLATE.name, "t", {"model": {"provider": name}}, namespace=stage.namespace)
    run = await working(stage, templateRef={"name": "t"})

    await stage.kube.delete(MODEL_PROVIDER, None, name)
    await run.ends(await run.harness(), 1)

    await run.until_condition("HarnessReady", "False", "ProviderNotFound")
    await stage.apply(MODEL_PROVIDER.name, name, scripted)
    await run.harness(2)
