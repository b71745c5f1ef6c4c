"""The kinds as a real API server holds them: what it accepts, what it refuses and how, what kubectl shows."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.control_plane.stage import API, CRDS, Stage
from towline.kube.errors import Refused
from towline.kube.kinds import AGENT_RUN, CUSTOM_RESOURCE

MERGE = "application/merge-patch+json"


async def create(stage: Stage, spec: dict[str, Any], *, kind: str = "AgentRun", name: str = "hello") -> dict[str, Any]:
    """Under strict validation, which is kubectl's default."""
    obj = {"apiVersion": API, "kind": kind, "metadata": {"name": name, "namespace": stage.namespace}, "spec": spec}
    plural = {"AgentRun": "agentruns", "AgentTemplate": "agenttemplates"}.get(kind)
    path = f"/apis/{API}/namespaces/{stage.namespace}/{plural}"
    if plural is None:
        path = f"/apis/{API}/{ {'ModelProvider': 'modelproviders', 'SandboxClass': 'sandboxclasses'}[kind] }"
        del obj["metadata"]["namespace"]
    return await stage.kube._write("POST", path, obj, query={"fieldValidation": "Strict", "dryRun": "All"})


async def patch(stage: Stage, body: dict[str, Any], subresource: str = "") -> dict[str, Any]:
    path = AGENT_RUN.path(stage.namespace, "hello", subresource)
    return await stage.kube._write("PATCH", path, body, MERGE)


@pytest.mark.parametrize("path", sorted(CRDS.glob("*.yaml")), ids=lambda path: path.stem)
async def test_each_definition_is_accepted_under_strict_validation(stage: Stage, path: Path) -> None:
    definition = yaml.safe_load(path.read_text())
    query = {"fieldValidation": "Strict", "dryRun": "All", "fieldManager": "test", "force": "true"}

    await stage.kube._write(
        "PATCH",
        CUSTOM_RESOURCE.path(None, definition["metadata"]["name"]),
        definition,
        "application/apply-patch+yaml",
        query=query,
    )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("AgentRun", {}, "exactly one of prompt and promptFrom"),
    ("AgentRun", {"prompt": ""}, "spec.prompt"),
    ("AgentRun", {"prompt": "x" * 32_769}, "spec.prompt"),
    (
        "AgentRun",
        {"prompt": "x", "promptFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        "exactly one of prompt and promptFrom",
    ),
    ("AgentRun", {"prompt": "x", "promt": "y"}, "spec.promt"),
    ("AgentRun", {"prompt": "x", "limits": {"maxTurns": 0}}, "spec.limits.maxTurns"),
    ("AgentRun", {"prompt": "x", "sandbox": {"policy": "Sometimes"}}, "spec.sandbox.policy"),
    ("AgentRun", {"prompt": "x", "templateRef": {"name": "No_Such"}}, "spec.templateRef.name"),
    ("AgentRun", {"prompt": "x", "workspace": {"files": [{"path": "../x", "content": ""}]}}, "inside the workspace"),
    (
        "AgentRun",
        {"prompt": "x", "workspace": {"files": [{"path": f"f{n}", "content": ""} for n in range(17)]}},
        "files",
    ),
    ("AgentRun", {"prompt": "x", "backoffLimit": -1}, "spec.backoffLimit"),
    ("AgentRun", {"prompt": "x", "idlePolicy": {"suspendAfterSeconds": 9, "finishAfterSeconds": 9}}, "less than"),
    ("ModelProvider", {"api": "Scripted"}, "scripted goes with api Scripted"),
    ("ModelProvider", {"api": "Telepathy"}, "spec.api"),
    ("SandboxClass", {"local": {"rootfs": "/x"}}, "local goes with provider local only"),
    ("AgentTemplate", {"tools": ["exec", "exec"]}, "spec.tools"),
]


@pytest.mark.parametrize(("kind", "spec", "named"), REFUSED, ids=[f"{kind}-{named}" for kind, _, named in REFUSED])
async def test_a_bad_manifest_is_refused_with_the_name_of_the_field(
    stage: Stage, kind: str, spec: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused) as refusal:
        await create(stage, spec, kind=kind)

    assert named in refusal.value.message


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "another"}, "prompt cannot be changed"),
    ({"prompt": None, "promptFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}, "cannot be changed"),
    ({"templateRef": {"name": "other"}}, "templateRef cannot be changed"),
    ({"limits": {"maxTurns": 3}}, "limits cannot be changed"),
    ({"params": {"a": "b"}}, "params cannot be changed"),
    ({"activeDeadlineSeconds": 60}, "activeDeadlineSeconds cannot be changed"),
    ({"workspace": {"files": [{"path": "a", "content": "b"}]}}, "workspace cannot be changed"),
    ({"backoffLimit": 1}, "backoffLimit cannot be changed"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words for _, words in CHANGES])
async def test_what_a_run_is_cannot_be_changed(stage: Stage, change: dict[str, Any], words: str) -> None:
    await stage.run()

    with pytest.raises(Refused) as refusal:
        await patch(stage, {"spec": change})

    assert words in refusal.value.message


async def test_the_switches_can_be_changed(stage: Stage) -> None:
    await stage.run()

    await patch(stage, {"spec": {"suspend": True, "ttlSecondsAfterFinished": 60}})
    await patch(stage, {"spec": {"suspend": False, "ttlSecondsAfterFinished": None}})
    await patch(stage, {"spec": {"cancel": True, "cancelReason": "enough"}})


@pytest.mark.parametrize("back", [False, None])
async def test_cancel_cannot_be_taken_back(stage: Stage, back: bool | None) -> None:
    await stage.run(cancel=True)

    with pytest.raises(Refused, match="cancel cannot be taken back"):
        await patch(stage, {"spec": {"cancel": back}})


def condition(kind: str, status: str, reason: str = "Completed") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-11-29T12:00:00Z"}


async def test_the_epoch_never_falls(stage: Stage) -> None:
    await stage.run()
    await patch(stage, {"status": {"epoch": 3}}, "status")

    for status in ({"epoch": 2}, {"epoch": None}, None):
        with pytest.raises(Refused, match="epoch never falls"):
            await patch(stage, {"status": status}, "status")
    await patch(stage, {"status": {"epoch": 4}}, "status")


async def test_an_outcome_sticks(stage: Stage) -> None:
    await stage.run()
    told = {"phase": "Succeeded", "conditions": [condition("Finished", "True"), condition("Succeeded", "True")]}
    await patch(stage, {"status": told}, "status")

    for phase in ("Failed", "Running", None):
        with pytest.raises(Refused, match="written once"):
            await patch(stage, {"status": {"phase": phase}}, "status")
    with pytest.raises(Refused, match="Finished never reverts"):
        await patch(stage, {"status": {"conditions": [condition("Finished", "False")]}}, "status")
    with pytest.raises(Refused):
        await patch(stage, {"status": None}, "status")
    await patch(stage, {"status": {"turns": 4}}, "status")


async def test_runs_are_selected_by_phase(stage: Stage) -> None:
    await stage.run("one")
    two = await stage.run("two")
    await stage.kube._write(
        "PATCH", AGENT_RUN.path(stage.namespace, "two", "status"), {"status": {"phase": "Failed"}}, MERGE
    )

    async def names(fields: str) -> set[str]:
        found = await stage.kube.list(AGENT_RUN, stage.namespace, fields=fields, metadata_only=True)
        return {each["metadata"]["name"] for each in found}

    assert await names("status.phase=Failed") == {two.name}
    assert await names("status.phase!=Succeeded,status.phase!=Failed,status.phase!=Cancelled") == {"one"}


async def test_applying_a_manifest_twice_changes_nothing(stage: Stage) -> None:
    first = await stage.run()
    before = await first.get()
    await stage.run()

    after = await first.get()

    assert before is not None
    assert after is not None
    assert before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


async def test_a_spec_of_the_largest_size_is_taken(stage: Stage) -> None:
    files = [{"path": f"f{n}", "content": "x" * 8192} for n in range(16)]
    params = {f"p{n}": "x" * 4096 for n in range(32)}

    obj = await create(stage, {"prompt": "x" * 32_768, "workspace": {"files": files}, "params": params})

    assert len(obj["spec"]["workspace"]["files"]) == 16


async def test_kubectl_shows_what_a_person_looks_for(stage: Stage) -> None:
    run = await stage.run()
    status = {
        "phase": "Running",
        "conditions": [condition("Succeeded", "Unknown", "Running")],
        "turns": 2,
        "sandbox": {"name": "sandbox-x-1", "state": "Ready"},
        "harness": {"podName": "run-x-1"},
        "attempt": 1,
        "usage": {"totalTokens": 1234},
    }
    await patch(stage, {"status": status}, "status")

    def kubectl(*arguments: str) -> list[list[str]]:
        lines = subprocess.run(
            [
                str(stage.control_plane.kubectl),
                f"--kubeconfig={stage.kubeconfig}",
                "-n",
                stage.namespace,
                "get",
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        return [line.split() for line in lines]

    head, row = kubectl("arun")
    assert head == ["NAME", "TEMPLATE", "PHASE", "REASON", "TURNS", "SANDBOX", "AGE"]
    assert row[:-1] == [run.name, "default", "Running", "Running", "2", "Ready"]
    head, row = kubectl("towline", "-o", "wide")[:2]
    assert head[7:] == ["TOKENS", "COST", "ATTEMPT", "APPROVALS", "POD"]
    assert "run-x-1" in row
