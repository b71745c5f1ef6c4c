"""What Helm has done around an installation: kinds brought up to date, and an end without anything left hanging."""

from typing import Any

import pytest

from tests.control_plane.stage import API, Stage
from towline.api import crds
from towline.controller.chart_hooks import apply_crds, clean_up
from towline.kube.kinds import AGENT_RUN, CUSTOM_RESOURCE, POD
from towline.naming import FINALIZER, RUN_UID_LABEL


async def a_run(stage: Stage, name: str, *finalizers: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": stage.namespace, "finalizers": list(finalizers)}
    return await stage.kube.create(
        {"apiVersion": API, "kind": "AgentRun", "metadata": metadata, "spec": {"prompt": "x"}}
    )


async def a_pod(stage: Stage, namespace: str, name: str, **labels: str) -> None:
    await stage.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "spec": {"containers": [{"name": "main", "image": "localhost/none:1"}]},
        }
    )


async def clean(stage: Stage) -> None:
    await clean_up(stage.kube, (stage.harness, stage.sandboxes), patience_seconds=0.2, give_up_seconds=2)


async def test_without_an_operator_no_finalizer_of_ours_holds_a_run(stage: Stage) -> None:
    await a_run(stage, "held", FINALIZER)
    await a_run(stage, "free")

    await clean(stage)

    assert await stage.kube.list(AGENT_RUN, stage.namespace) == []


async def test_somebody_elses_finalizer_is_left_to_them(stage: Stage) -> None:
    await a_run(stage, "held", FINALIZER, "example.com/theirs")

    await clean(stage)

    (left,) = await stage.kube.list(AGENT_RUN, stage.namespace)
    assert left["metadata"]["finalizers"] == ["example.com/theirs"]
    assert "deletionTimestamp" in left["metadata"]
    await stage.kube.patch_metadata(AGENT_RUN, stage.namespace, "held", {"finalizers": []})


async def test_pods_of_runs_go_and_others_stay(stage: Stage) -> None:
    await a_pod(stage, stage.harness, "run-1-1", **{RUN_UID_LABEL: "1"})
    await a_pod(stage, stage.sandboxes, "sandbox-1-1", **{RUN_UID_LABEL: "1"})
    await a_pod(stage, stage.sandboxes, "debugging")

    await clean(stage)

    assert await stage.kube.list(POD, stage.harness) == []
    assert [pod["metadata"]["name"] for pod in await stage.kube.list(POD, stage.sandboxes)] == ["debugging"]


async def test_cleaning_what_is_clean_is_no_fault(stage: Stage) -> None:
    await clean(stage)
    await clean(stage)


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.name)
async def test_a_kind_is_brought_up_to_date_and_then_left_as_it_is(stage: Stage, kind: crds.Kind) -> None:
    name = crds.definition(kind)["metadata"]["name"]
    older = await stage.kube.get(CUSTOM_RESOURCE, None, name)
    assert older is not None
    del older["spec"]["versions"][0]["additionalPrinterColumns"]
    await stage.kube.replace(older)

    await apply_crds(stage.kube)
    first = await stage.kube.get(CUSTOM_RESOURCE, None, name)
    await apply_crds(stage.kube)
    second = await stage.kube.get(CUSTOM_RESOURCE, None, name)

    assert first is not None
    assert second is not None
    columns = [column["name"] for column in first["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == [column.name for column in kind.columns]
    assert second["metadata"]["generation"] == first["metadata"]["generation"]
