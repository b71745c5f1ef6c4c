"""The network policies: put back, and only then are sandboxes made."""

from typing import Any

import pytest

from towline.controller.policies import Policies
from towline.kube.errors import Unreachable

POLICY = {"metadata": {"namespace": "sandboxes", "name": "deny"}, "spec": {"podSelector": {}}}


class Cluster:
    """`stored` is what the API server has; `fault` is raised by the next requests."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.fault: Exception | None = None
        self.applied = 0
        self.in_force_at_apply: list[bool] = []
        self.policies: Policies | None = None

    async def get(self, *_: object) -> dict[str, Any] | None:
        if self.fault is not None:
            raise self.fault
        return self.stored

    async def apply(self, obj: dict[str, Any]) -> dict[str, Any]:
        assert self.policies is not None
        self.in_force_at_apply.append(self.policies.in_force)
        self.applied += 1
        self.stored = obj
        return obj


class Lookup:
    fault: Exception | None = None

    async def __call__(self, _: object) -> None:
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def parts() -> tuple[Cluster, Lookup, Policies, list[str]]:
    cluster, lookup, told = Cluster(), Lookup(), list[str]()
    made = Policies(
        kube=cluster,  # type: ignore[arg-type]
        wanted=[POLICY],
        refresh=lookup,
        restored=lambda: told.append("restored"),
    )
    cluster.policies = made
    return cluster, lookup, made, told


async def test_nothing_is_in_force_before_it_was_seen(parts: tuple[Cluster, Lookup, Policies, list[str]]) -> None:
    cluster, _, policies, told = parts
    assert not policies.in_force

    await policies.ensure()

    assert (policies.in_force, cluster.applied, told) == (True, 1, ["restored"])


async def test_a_check_that_finds_all_well_takes_nothing_away(
    parts: tuple[Cluster, Lookup, Policies, list[str]],
) -> None:
    cluster, _, policies, told = parts
    await policies.ensure()

    await policies.ensure()

    assert (policies.in_force, cluster.applied, told) == (True, 1, ["restored"])


@pytest.mark.parametrize("found", [None, {"metadata": {}, "spec": {"podSelector": {}, "ingress": [{}]}}])
async def test_one_that_is_gone_or_opened_is_put_back_and_meanwhile_not_in_force(
    parts: tuple[Cluster, Lookup, Policies, list[str]], found: dict[str, Any] | None
) -> None:
    cluster, _, policies, told = parts
    await policies.ensure()
    cluster.stored = found

    await policies.ensure()

    assert cluster.in_force_at_apply == [False, False]
    assert policies.in_force
    assert told == ["restored", "restored"]


async def test_until_it_is_known_what_a_sandbox_must_find_closed_none_is_made(
    parts: tuple[Cluster, Lookup, Policies, list[str]],
) -> None:
    _, lookup, policies, told = parts
    lookup.fault = Unreachable("no address")
    with pytest.raises(Unreachable):
        await policies.ensure()
    assert (policies.in_force, told) == (False, [])

    lookup.fault = None
    await policies.ensure()
    lookup.fault = Unreachable("no address")
    await policies.ensure()

    assert policies.in_force, "what was known stays in use"


async def test_an_api_server_that_is_away_changes_nothing(parts: tuple[Cluster, Lookup, Policies, list[str]]) -> None:
    cluster, _, policies, _ = parts
    await policies.ensure()
    cluster.fault = Unreachable("away")

    with pytest.raises(Unreachable):
        await policies.ensure()

    assert policies.in_force
