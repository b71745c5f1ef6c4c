"""What a watch or an API server may do wrong: nothing is lost or done twice, and a dead watch ends the process."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.control_plane.played import ready_sandbox, working
from tests.control_plane.proxy import Line, Proxy
from tests.control_plane.stage import Stage
from towline.controller.leader import DEADLINE_SECONDS
from towline.kube.login import CONNECTIONS


@pytest.fixture
async def proxy(stage: Stage, tmp_path: Path) -> AsyncIterator[Proxy]:
    """The operator's way to the API server."""
    made = Proxy(stage.kubeconfig)
    stage.kubeconfig = await made.start(tmp_path)
    yield made
    await stage.stop_operators()
    await made.stop()


def of_lease(request: web.Request) -> bool:
    return request.path.endswith("/leases/towline-operator")


def of_pod(line: Line, kind: str) -> bool:
    return bool(line["type"] == kind and line["object"]["kind"] == "Pod")


async def test_a_deletion_that_no_watch_told_is_noticed_by_the_sweep(stage: Stage, proxy: Proxy) -> None:
    await stage.started(sweep_seconds=1)
    run = await working(stage)
    proxy.drops = lambda line: of_pod(line, "DELETED")

    await run.vanishes(await run.harness())

    await run.harness(2)


async def test_a_run_deleted_unseen_leaves_the_cache(stage: Stage, proxy: Proxy) -> None:
    operator = await stage.started(sweep_seconds=1)
    run = await stage.run(templateRef={"name": "nowhere"})
    await run.until_condition("Accepted", "False")
    proxy.drops = lambda line: line["type"] == "DELETED"

    await run.delete()

    async def forgotten() -> bool:
        return operator.cache.entry((stage.namespace, run.name)) is None

    await stage.until(forgotten, "the cache is empty")


async def test_random_events_may_be_lost(stage: Stage, proxy: Proxy) -> None:
    numbers = iter(range(10_000))
    proxy.drops = lambda line: next(numbers) % 2 == 0
    await stage.started(sweep_seconds=1)

    run = await stage.run()
    await run.runs(await run.harness())
    await run.until_phase("Running")
    await ready_sandbox(stage, run)
    await run.completes()
    await run.ends(await run.harness())

    await run.until_phase("Succeeded")
    await run.no_pods()


async def test_an_expired_watch_begins_anew_and_misses_nothing(stage: Stage, proxy: Proxy) -> None:
    await stage.started(sweep_seconds=1)
    run = await working(stage)
    proxy.expired = True
    await proxy.close()
    await proxy.open()
    await asyncio.sleep(0.5)
    proxy.expired = False

    await run.vanishes(await run.harness())

    await run.harness(2)


async def test_a_frozen_watch_ends_the_process(stage: Stage, proxy: Proxy) -> None:
    operator = await stage.started(sweep_seconds=1)
    operator.sweep.stall_seconds = 0.5
    run = await working(stage)
    task = stage.operators[-1][1]

    proxy.frozen.set()
    await run.change(suspend=True)

    assert await asyncio.wait_for(task, 15) is False
    assert operator.sweep.stalled


async def test_runs_go_on_while_the_api_server_is_away(stage: Stage, proxy: Proxy) -> None:
    operator = await stage.started()
    run = await working(stage)

    await proxy.close()
    await run.completes()
    await asyncio.sleep(2)
    await proxy.open()

    await run.ends(await run.harness())
    await run.until_phase("Succeeded")
    assert operator.leading.is_set()


async def test_losing_the_api_server_for_long_is_losing_the_lease(stage: Stage, proxy: Proxy) -> None:
    operator = await stage.started()
    run = await working(stage)
    task = stage.operators[-1][1]

    await proxy.close()

    assert await asyncio.wait_for(task, 20) is False
    assert not operator.sweep.stalled
    await proxy.open()
    await stage.started(bound=30)  # nobody gave the lease back
    await run.completes()
    await run.ends(await run.harness())
    await run.until_phase("Succeeded", bound=15)


async def test_too_many_requests_are_repeated_when_the_server_says_so(stage: Stage, proxy: Proxy) -> None:
    refused = 0

    def refuses(request: web.Request) -> web.Response | None:
        nonlocal refused
        if request.method == "POST" and request.path.endswith("/pods") and refused < 2:
            refused += 1
            return web.json_response({"reason": "TooManyRequests"}, status=429, headers={"Retry-After": "1"})
        return None

    proxy.refuses = refuses
    await stage.started()

    run = await stage.run()

    await run.harness()
    assert refused == 2
    assert (await run.status())["epoch"] == 1


async def test_a_server_error_while_a_pod_is_made_makes_no_second_one(stage: Stage, proxy: Proxy) -> None:
    broken = 0

    def refuses(request: web.Request) -> web.Response | None:
        nonlocal broken
        if request.method in ("POST", "PATCH") and request.path.startswith("/api/v1/namespaces/harness") and broken < 3:
            broken += 1
            return web.json_response({"reason": "InternalError"}, status=500)
        return None

    proxy.refuses = refuses
    await stage.started()

    run = await stage.run()
    await run.runs(await run.harness())

    status = await run.until_phase("Running")
    assert status["epoch"] == 1
    assert len(await run.pods(stage.harness)) == 1


async def test_one_request_of_five_may_be_refused_and_everything_comes_about_once(stage: Stage, proxy: Proxy) -> None:
    chance, refused = random.Random(7), dict[int, int]()

    def refuses(request: web.Request) -> web.Response | None:
        if chance.random() >= 0.2 or of_lease(request):
            return None
        status = chance.choice((429, 500))
        refused[status] = refused.get(status, 0) + 1
        return web.json_response({"reason": "no"}, status=status, headers={"Retry-After": "1"} if status == 429 else {})

    await stage.started(sweep_seconds=2)
    proxy.refuses = refuses
    before = dict(proxy.counts)

    runs = [await stage.run(f"r{number}") for number in range(8)]
    for run in runs:
        await run.runs(await run.harness(bound=60))
    for run in runs:
        await run.until_phase("Running", bound=60)
        await run.completes()
        await run.ends(await run.harness())
    for run in runs:
        status = await run.until_phase("Succeeded", bound=60)
        assert (status["epoch"], status["attempt"]) == (1, 0)
        assert await run.events() == ["run.started", "harness.started", "turn.started", "run.completed"]

    assert min(refused.get(429, 0), refused.get(500, 0)) > 0
    asked = sum(proxy.counts.values()) - sum(before.values())
    assert asked < 60 * len(runs), "no hot loop"


async def test_an_api_server_that_takes_two_seconds_for_everything_delays_and_breaks_nothing(
    stage: Stage, proxy: Proxy
) -> None:
    proxy.delay = lambda request: 2.0  # from the start: the first look takes longer than a lease may go unrenewed
    operator = await stage.started(bound=60)

    runs = [await stage.run(f"r{number}") for number in range(5)]
    for run in runs:
        await run.runs(await run.harness(bound=60))
    for run in runs:
        status = await run.until_phase("Running", bound=60)
        assert (status["epoch"], status["attempt"]) == (1, 0)
        assert len(await run.pods(stage.harness)) == 1

    assert operator.leading.is_set()
    assert not stage.operators[-1][1].done(), "it still leads: the lease outlasts such answers"
    proxy.delay = lambda request: 0.0


async def test_no_renewal_of_the_lease_waits_behind_the_requests_of_many_runs(stage: Stage, proxy: Proxy) -> None:
    await stage.started()
    task = stage.operators[-1][1]
    await working(stage)  # so the watches watch
    proxy.delay = lambda request: 0.0 if of_lease(request) else 20.0

    runs = [await stage.run(f"r{number}") for number in range(CONNECTIONS + 2)]
    await asyncio.wait([task], timeout=DEADLINE_SECONDS + 5)

    assert not task.done(), "it still leads"
    proxy.delay = lambda request: 0.0
    for run in runs:
        await run.harness(bound=60)
        assert (await run.status())["epoch"] == 1
