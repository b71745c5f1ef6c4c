"""The gateway's identity against a real API server, with real tokens, and with no more rights than the gateway has."""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import sandbox_image
from e2e.cluster import lifecycle
from e2e.cluster.layout import Cluster
from e2e.conftest import Apply
from images.build import reference
from towline.clock import utc_now
from towline.errors import Unauthenticated
from towline.events.event import RunRef
from towline.events.pods import register_harness
from towline.events.store import Store
from towline.gateway.api_server import ApiServer
from towline.gateway.identity import IdentityUnavailable
from towline.gateway.token_review import TokenReviewIdentity
from towline.kube.client import Kube
from towline.kube.kinds import POD
from towline.local.valkey import server_binary, start_valkey
from towline.naming import harness_pod_name

NAMESPACE = "e2e-identity"
AUDIENCE = "towline-gateway"

pytestmark = pytest.mark.usefixtures("accounts")


@pytest.fixture(scope="module")
def accounts(cluster: Cluster, apply: Apply) -> Iterator[None]:
    """Service accounts `towline-harness` and `other`, and `gateway`, which may create TokenReviews."""
    role = {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
            for name in ("towline-harness", "other", "gateway")
        ),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAMESPACE},
            "rules": [role],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAMESPACE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAMESPACE},
            "subjects": [{"kind": "ServiceAccount", "name": "gateway", "namespace": NAMESPACE}],
        },
    )
    yield
    lifecycle.kubectl(cluster, "delete", "clusterrole,clusterrolebinding", NAMESPACE)
    lifecycle.kubectl(cluster, "delete", "namespace", NAMESPACE, "--timeout=60s")


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """The operator's and the gateway's, beside the cluster."""
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        folder = Path(name)
        socket = folder / "valkey.sock"
        server = await start_valkey(server_binary(), data=folder / "data", socket=socket, log=folder / "log")
        store = Store.connect(f"unix://{socket}")
        yield store
        await store.aclose()
        server.kill()
        await server.exited.wait()


def identity_of(cluster: Cluster, store: Store, folder: Path, account: str) -> tuple[ApiServer, TokenReviewIdentity]:
    (folder / "token").write_text(token(cluster, account, "--duration=10m"))
    (folder / "ca.crt").write_bytes((cluster.pki / "ca.crt").read_bytes())
    server = ApiServer(cluster.api, folder)
    return server, TokenReviewIdentity(
        server, store, namespace=NAMESPACE, service_account="towline-harness", clock=lambda: utc_now().timestamp()
    )


@pytest.fixture
async def identity(cluster: Cluster, store: Store, tmp_path: Path) -> AsyncIterator[TokenReviewIdentity]:
    server, identity = identity_of(cluster, store, tmp_path, "gateway")
    yield identity
    await server.aclose()


@pytest.fixture
async def pod(kube: Kube, store: Store) -> AsyncIterator[dict[str, Any]]:
    """A pod by the name of a harness', registered for its run under epoch 2."""
    run = RunRef("team-a", str(uuid.uuid4()), "r")
    name = harness_pod_name(run.uid, 2)
    await register_harness(store, name, run, 2)
    made = await kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {"run": run.uid}},
            "spec": {
                "serviceAccountName": "towline-harness",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "nodeSelector": {"towline.dev/zone": "sandbox"},
                "containers": [
                    {
                        "name": "main",
                        "image": reference(sandbox_image.NAME),
                        "imagePullPolicy": "Never",
                        "command": ["sleep", "600"],
                    }
                ],
            },
        }
    )
    yield made
    await kube.delete(POD, NAMESPACE, name, grace_seconds=0)


def token(cluster: Cluster, account: str, *options: str) -> str:
    return lifecycle.kubectl(cluster, "create", "token", account, f"--namespace={NAMESPACE}", *options).strip()


def bound(cluster: Cluster, pod: dict[str, Any], account: str = "towline-harness", audience: str = AUDIENCE) -> str:
    """As the kubelet requests it for the pod."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    binding = ("--bound-object-kind=Pod", f"--bound-object-name={name}", f"--bound-object-uid={uid}")
    return token(cluster, account, f"--audience={audience}", "--duration=10m", *binding)


async def test_a_pods_own_token_stands_for_the_run_that_was_registered(
    cluster: Cluster, identity: TokenReviewIdentity, pod: dict[str, Any]
) -> None:
    principal = await identity.verify(bound(cluster, pod))

    run = pod["metadata"]["annotations"]["run"]
    assert (principal.namespace, principal.uid, principal.epoch) == ("team-a", run, 2)
    assert 0 < principal.expires - utc_now().timestamp() <= 60


async def test_tokens_for_others_or_of_others_are_refused(
    cluster: Cluster, identity: TokenReviewIdentity, pod: dict[str, Any]
) -> None:
    good = bound(cluster, pod)
    head, claims, signature = good.split(".")
    for wrong in (
        token(cluster, "towline-harness"),
        token(cluster, "towline-harness", f"--audience={AUDIENCE}"),
        token(cluster, "other", f"--audience={AUDIENCE}"),
        bound(cluster, pod, audience="other"),
        f"{head}.{claims}.{signature[:-4]}AAAA",
    ):
        with pytest.raises(Unauthenticated):
            await identity.verify(wrong)


async def test_a_deleted_pods_token_is_worthless(
    cluster: Cluster, kube: Kube, identity: TokenReviewIdentity, pod: dict[str, Any]
) -> None:
    """At once for one that was never shown; one that was may pass for the ten seconds that the API server remembers."""
    never_shown = bound(cluster, pod)
    await kube.delete(POD, NAMESPACE, pod["metadata"]["name"], grace_seconds=0)

    async with asyncio.timeout(20):
        while True:
            try:
                await identity.verify(never_shown)
            except Unauthenticated:
                return
            await asyncio.sleep(0.5)


async def test_without_the_right_to_ask_nobody_is_refused_and_nobody_let_in(
    cluster: Cluster, store: Store, tmp_path: Path, pod: dict[str, Any]
) -> None:
    server, identity = identity_of(cluster, store, tmp_path, "other")
    try:
        with pytest.raises(IdentityUnavailable, match="403"):
            await identity.verify(bound(cluster, pod))
    finally:
        await server.aclose()
