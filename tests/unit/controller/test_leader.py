"""Who may lead, by value; and what a process does that may not any more."""

from typing import Any

import pytest

from towline.controller.leader import DEADLINE_SECONDS, DURATION_SECONDS, Elector, LeaseSeen, decide
from towline.kube.errors import Conflict, NotLeading, Unreachable

TABLE = {
    "no lease is made": (None, "create"),
    "ours is renewed": (LeaseSeen("me", 15, 0), "renew"),
    "ours is renewed however old": (LeaseSeen("me", 15, 99), "renew"),
    "somebody else's that moves is waited for": (LeaseSeen("other", 15, 14), "wait"),
    "somebody else's that has not moved for its duration is taken": (LeaseSeen("other", 15, 15.1), "take"),
    "a lease that was given back is taken at once": (LeaseSeen("", 1, 0), "take"),
}


@pytest.mark.parametrize(("lease", "step"), TABLE.values(), ids=TABLE)
def test_decide(lease: LeaseSeen | None, step: str) -> None:
    assert decide(lease, "me") == step


@pytest.mark.parametrize(
    ("holder", "pod", "step"),
    [
        ("operator-5d-x_1", "operator-5d-x", "take"),
        ("operator-5d-x_1", "operator-5d-y", "wait"),
        ("operator-5d-xy_1", "operator-5d-x", "wait"),
        ("operator_1", "", "wait"),
    ],
)
def test_a_process_that_follows_another_in_its_pod_need_not_wait(holder: str, pod: str, step: str) -> None:
    assert decide(LeaseSeen(holder, 15, 0), f"{pod}_2", pod) == step


class Leases:
    """The API server's one Lease; `fault` is raised by the next requests."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.fault: Exception | None = None

    async def get(self, *_: object) -> dict[str, Any] | None:
        self._fail()
        return None if self.stored is None else {**self.stored, "spec": dict(self.stored["spec"])}

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        self._fail()
        return self._store(obj)

    async def replace(self, obj: dict[str, Any]) -> dict[str, Any]:
        self._fail()
        if obj["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("changed")
        return self._store(obj)

    def _store(self, obj: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.stored = {**obj, "metadata": {**obj["metadata"], "uid": "u", "resourceVersion": str(self.version)}}
        return self.stored

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def elector(leases: Leases, clock: Clock, name: str) -> Elector:
    return Elector(leases, namespace="system", name="lease", pod=name, monotonic=clock)  # type: ignore[arg-type]


async def test_the_second_waits_and_takes_over_when_the_first_stops_moving() -> None:
    leases, clock = Leases(), Clock()
    one, two = elector(leases, clock, "one"), elector(leases, clock, "two")
    assert await one._try()
    for _ in range(20):
        clock.now += 1
        assert await one._try()
        assert not await two._try()

    clock.now += DURATION_SECONDS + 1

    assert not one.leading, "it noticed before anybody could take over"
    assert await two._try()
    assert leases.stored is not None
    assert leases.stored["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_may_write_until_its_deadline_and_no_longer() -> None:
    leases, clock = Leases(), Clock()
    one = elector(leases, clock, "one")
    await one._try()
    leases.fault = Unreachable("away")

    clock.now += DEADLINE_SECONDS - 1
    assert await one._try()
    one.check()
    clock.now += 2

    assert not await one._try()
    with pytest.raises(NotLeading):
        one.check()


async def test_of_two_that_take_at_once_one_wins() -> None:
    leases, clock = Leases(), Clock()
    one = elector(leases, clock, "one")
    await one._try()
    await one.release()
    two, three = elector(leases, clock, "two"), elector(leases, clock, "three")
    found = await leases.get()

    assert await two._try()
    assert found is not None
    with pytest.raises(Conflict):
        await leases.replace(three._lease(found))
    assert not await three._try()


async def test_a_lease_given_back_is_taken_without_waiting() -> None:
    leases, clock = Leases(), Clock()
    one, two = elector(leases, clock, "one"), elector(leases, clock, "two")
    await one._try()
    assert not await two._try()

    await one.release()

    assert not one.leading
    assert await two._try()


async def test_a_wall_clock_that_jumps_means_nothing() -> None:
    leases, clock = Leases(), Clock()
    one, two = elector(leases, clock, "one"), elector(leases, clock, "two")
    await one._try()
    assert leases.stored is not None
    leases.stored["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"

    assert not await two._try()
