"""The operator as its own process, with the real manifests: `python -m towline.controller`."""

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.control_plane.stage import BOUND, Stage
from towline.kube.kinds import LEASE, NETWORK_POLICY

SIZES = {"cpu": "100m", "memory": "128Mi", "disk": "256Mi"}


def pods_of(stage: Stage) -> dict[str, Any]:
    return {
        "systemNamespace": stage.system,
        "harness": {
            "namespace": stage.harness,
            "image": {"reference": "localhost/harness:1"},
            "serviceAccount": "default",
            "placement": {"nodeSelector": {"towline.dev/zone": "trusted"}},
            "gatewayUrl": "http://127.0.0.1:1/mcp",
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"memory": "64Mi"},
        },
        "sandbox": {
            "namespace": stage.sandboxes,
            "image": {"reference": "localhost/sandbox:1"},
            "tools": {"reference": "localhost/tools:1"},
            "placement": {"nodeSelector": {"towline.dev/zone": "sandbox"}},
            "requests": SIZES,
            "limits": SIZES,
        },
    }


@asynccontextmanager
async def started(stage: Stage, folder: Path, **environment: str) -> AsyncIterator[Process]:
    """The process; killed if it still runs when the test is done with it, or has failed."""
    (folder / "pods.json").write_text(json.dumps(pods_of(stage)))
    (folder / "secret").write_text("s" * 64)
    given = {
        "TOWLINE_REDIS_URL": stage.redis_url,
        "TOWLINE_PODS_FILE": str(folder / "pods.json"),
        "TOWLINE_INSTALLATION_SECRET_FILE": str(folder / "secret"),
        "TOWLINE_SYSTEM_NAMESPACE": stage.system,
        "TOWLINE_HARNESS_NAMESPACE": stage.harness,
        "TOWLINE_SANDBOX_NAMESPACE": stage.sandboxes,
        "KUBECONFIG": str(stage.kubeconfig),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "towline.controller", env=given | environment, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_runs_a_run_and_goes_in_good_order(stage: Stage, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with started(stage, tmp_path, TOWLINE_HEALTH_PORT=str(port)) as process:
        run = await stage.run()
        pod = await run.harness()
        assert pod["spec"]["nodeSelector"] == {"towline.dev/zone": "trusted"}
        await run.runs(pod)
        await run.until_phase("Running")
        await run.wants_sandbox()
        sandbox = await run.sandbox()
        environment = {each["name"]: each.get("value") for each in sandbox["spec"]["containers"][0]["env"]}
        assert "tcp:169.254.169.254:80" in str(environment["TOWLINE_FORBIDDEN"])
        assert await stage.kube.list(NETWORK_POLICY, stage.sandboxes)

        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for path in ("/healthz", "/readyz"):
                async with session.get(path) as answer:
                    assert (answer.status, await answer.text()) == (200, "ok")
            async with session.get("/metrics") as answer:
                told = await answer.text()
        assert "towline_runs 1" in told
        assert 'towline_reconciles_total{outcome="done"}' in told

        process.send_signal(signal.SIGTERM)
        _, lines = await asyncio.wait_for(process.communicate(), BOUND)

    assert process.returncode == 0, lines.decode()
    lease = await stage.kube.get(LEASE, stage.system, "towline-operator")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
    story = [json.loads(line) for line in lines.splitlines()]
    assert {"leadership gained", "first look done", "action carried out"} <= {each["event"] for each in story}
    assert "say hello" not in lines.decode()


async def test_wrong_settings_are_listed_in_full(stage: Stage, tmp_path: Path) -> None:
    async with started(stage, tmp_path, TOWLINE_REDIS_URL="", TOWLINE_HEALTH_PORT="many") as process:
        _, lines = await asyncio.wait_for(process.communicate(), BOUND)

    assert process.returncode == 1
    told = [json.loads(line)["event"] for line in lines.splitlines()]
    assert any("TOWLINE_REDIS_URL is not set" in each for each in told)
    assert any("TOWLINE_HEALTH_PORT='many'" in each for each in told)


async def test_without_credentials_it_ends_and_says_so(stage: Stage, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    async with started(stage, tmp_path, KUBECONFIG=nowhere, TOWLINE_HEALTH_PORT="18083") as process:
        _, lines = await asyncio.wait_for(process.communicate(), BOUND)

    assert process.returncode == 1
    assert "nowhere" in lines.decode()
