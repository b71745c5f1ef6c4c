"""The `pod` provider keeps the contract of every provider, on real nodes, and never touches what is not its own."""

import os
import secrets
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from e2e import sandbox_image
from e2e.cluster import lifecycle, policy_engine
from e2e.cluster.layout import Cluster
from e2e.conftest import Apply
from images.build import reference
from towline.api.snapshot import Model, Sandbox, Snapshot
from towline.errors import SandboxFailed
from towline.events.event import RunRef
from towline.kube.client import Kube
from towline.kube.kinds import POD
from towline.manifests.config import PodConfig
from towline.manifests.sandbox_pod import sandbox_pod
from towline.naming import sandbox_key, sandbox_name
from towline.sandbox.conformance import CHECKS, Bench, Check
from towline.sandbox.guest import Guest
from towline.sandbox.pod import PodSandbox
from towline.sandbox.provider import SandboxRequest

VOLUMES = "lib/e2e-volumes"
"""Below the node's /var: what stands behind the claims."""

pytestmark = pytest.mark.timeout(300)


@dataclass
class Makers:
    """Requests, and their manifests."""

    cluster: Cluster
    namespace: str
    apply: Apply
    delivery: str = "ImageVolume"
    sandbox: Sandbox = field(default_factory=lambda: Sandbox(provider="pod", memory_bytes=128 * 2**20))
    netcheck_seconds: int = 20
    runs: dict[str, RunRef] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)

    def request(self, *, keep: bool = False) -> SandboxRequest:
        """Under a fresh name; `keep` gives it a volume that outlives it."""
        run = RunRef("e2e", str(uuid.uuid4()), "conformance")
        name = sandbox_name(run.uid, 1)
        self.runs[name] = run
        return SandboxRequest(
            name=name,
            key=sandbox_key(secrets.token_bytes(32), name),
            volume=Path(self._claim(name)) if keep else None,
        )

    def build(self, request: SandboxRequest) -> dict[str, Any]:
        run = self.runs[request.name]
        model = Model(api="Scripted", provider="s", name="s")
        snapshot = Snapshot(namespace="e2e", name=run.name, uid=run.uid, prompt="x", model=model, sandbox=self.sandbox)
        return sandbox_pod(
            run,
            snapshot,
            1,
            self._config().sandbox,
            key=request.key,
            forbidden=self.forbidden,
            claim=str(request.volume or ""),
        )

    @property
    def forbidden(self) -> tuple[str, ...]:
        dns, service = self.cluster.dns_service, self.cluster.api_service
        api = (f"tcp:{service}:443", f"tcp:{self.cluster.address}:6443")
        return (*api, f"udp:{dns}:53", f"tcp:{dns}:53", "tcp:169.254.169.254:80")

    def _config(self) -> PodConfig:
        never = {"pullPolicy": "Never"}
        node = {"nodeSelector": {"towline.dev/zone": "sandbox"}}
        size = {"cpu": "500m", "memory": "256Mi", "disk": "128Mi"}
        return PodConfig.model_validate(
            {
                "harness": {
                    "image": {"reference": "unused"},
                    "placement": node,
                    "gatewayUrl": "http://unused",
                    "requests": {},
                    "limits": {},
                },
                "sandbox": {
                    "namespace": self.namespace,
                    "image": {"reference": reference(sandbox_image.NAME), **never},
                    "tools": {"reference": reference("tools"), **never},
                    "delivery": self.delivery,
                    "placement": node,
                    "requests": {"cpu": "10m", "memory": "32Mi", "disk": "16Mi"},
                    "limits": size,
                    "netcheckSeconds": self.netcheck_seconds,
                },
            }
        )

    def _claim(self, name: str) -> str:
        """A PersistentVolumeClaim, bound beforehand to a folder of the sandbox node."""
        folder = self.cluster.node("sandbox").var / VOLUMES / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # a hostPath volume knows no fsGroup
        size, modes = {"storage": "64Mi"}, ["ReadWriteOnce"]
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "accessModes": modes,
                    "capacity": size,
                    "claimRef": {"name": name, "namespace": self.namespace},
                    "hostPath": {"path": f"/var/{VOLUMES}/{name}"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "",
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "accessModes": modes,
                    "resources": {"requests": size},
                    "storageClassName": "",
                    "volumeName": name,
                },
            },
        )
        self.claims.append(name)
        return name


@pytest.fixture
def makers(cluster: Cluster, namespace: str, apply: Apply) -> Iterator[Makers]:
    makers = Makers(cluster, namespace, apply)
    yield makers
    for name in makers.claims:
        lifecycle.kubectl(cluster, "delete", "pvc", name, f"--namespace={namespace}", "--timeout=60s")
        lifecycle.kubectl(cluster, "delete", "pv", name, "--timeout=60s")


@pytest.fixture
def provider(kube: Kube, makers: Makers) -> PodSandbox:
    return PodSandbox(kube, makers.namespace, makers.build)


def first_process(pod_uid: str) -> int:
    """The tool server's number on this machine, of which every node is a part."""
    for folder in Path("/proc").iterdir():
        try:
            ours = folder.name.isdigit() and pod_uid in (folder / "cgroup").read_text()
            if ours and b"toolserver" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no process of pod {pod_uid}")


@pytest.mark.parametrize("delivery", ["ImageVolume", "InitContainer"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_pod_provider_conforms(
    check: Check, delivery: str, kube: Kube, makers: Makers, provider: PodSandbox
) -> None:
    makers.delivery = delivery

    async def kill(name: str) -> None:
        pod = await kube.get(POD, makers.namespace, name)
        assert pod is not None
        os.kill(first_process(pod["metadata"]["uid"]), signal.SIGKILL)

    await check(Bench(provider, lambda: makers.request(keep="suspended" in check.__name__), kill))


async def test_somebody_elses_pod_of_our_name_is_left_alone(kube: Kube, makers: Makers, provider: PodSandbox) -> None:
    request = makers.request()
    foreign = makers.build(request)
    foreign["metadata"]["labels"] = {"app": "somebody-else"}
    uid = (await kube.create(foreign))["metadata"]["uid"]
    try:
        with pytest.raises(SandboxFailed, match="NameTaken"):
            await provider.create(request)
        await provider.destroy(request.name)

        pod = await kube.get(POD, makers.namespace, request.name)
        assert pod is not None
        assert (pod["metadata"]["uid"], pod["metadata"].get("deletionTimestamp")) == (uid, None)
    finally:
        await kube.delete(POD, makers.namespace, request.name, grace_seconds=0)


async def test_memory_above_the_limit_is_told_as_such(makers: Makers, provider: PodSandbox) -> None:
    request = makers.request()
    handle = await provider.create(request)
    try:
        async with Guest(handle.endpoint, request.key) as guest:
            try:
                await guest.call("a", "exec", command="python3 -c 'b = bytearray(1 << 30)'; true")
            except (OSError, EOFError):
                pass  # the tool server may be the one that the kernel picks
        pod = await provider.endpoint(request.name)
        assert pod == handle.endpoint, "cgroup v1 kills the process, and the sandbox lives on"
    except SandboxFailed:
        assert (await provider.wait_lost(request.name)).reason == "OOMKilled"
    finally:
        await provider.destroy(request.name)


async def test_an_image_that_is_not_there_is_told_as_such(kube: Kube, makers: Makers) -> None:
    makers.sandbox = makers.sandbox.model_copy(update={"image": "localhost/no-such-image:1"})
    request = makers.request()

    with pytest.raises(SandboxFailed, match="ImagePullFailed"):
        await PodSandbox(kube, makers.namespace, makers.build, start_seconds=8).create(request)

    assert await kube.get(POD, makers.namespace, request.name) is None


async def test_a_used_up_quota_is_told_as_such(makers: Makers, provider: PodSandbox) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": makers.namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    makers.apply(quota)
    try:
        with pytest.raises(SandboxFailed, match="QuotaExceeded"):
            await create_many(provider, makers)
    finally:
        lifecycle.kubectl(makers.cluster, "delete", "quota", "none", f"--namespace={makers.namespace}")


async def create_many(provider: PodSandbox, makers: Makers) -> None:
    """A new quota takes a moment to be known."""
    for _ in range(10):
        request = makers.request()
        await provider.create(request)
        await provider.destroy(request.name)


async def test_without_a_policy_engine_the_sandbox_never_opens(makers: Makers, provider: PodSandbox) -> None:
    makers.netcheck_seconds = 2
    request = makers.request()
    policy_engine.stop(makers.cluster, "sandbox")
    try:
        with pytest.raises(SandboxFailed, match=r"PolicyNotEnforced.*still reaches tcp:"):
            await provider.create(request)
    finally:
        policy_engine.resume(makers.cluster, "sandbox")

    handle = await provider.create(replace(request, name=makers.request().name))
    await provider.destroy(handle.name)
