"""The chart's life: installed, upgraded, tampered with, uninstalled. On a cluster of its own, which is thrown away."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e import installation as installing
from e2e.cluster import lifecycle, places
from e2e.cluster.layout import ZONES
from e2e.cluster.shell import wait_until
from e2e.installation import HARNESSES, SANDBOXES, SYSTEM, VALUES, Installation
from e2e.kubectl import Kubectl
from e2e.runs import Team, call, say

NAME = "e2e-chart"
CRD = "sandboxclasses.towline.dev"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def own(installation: Installation) -> Iterator[Installation]:
    """An installation on a second cluster; the session's, made first, has built the images."""
    if installation.cluster is None:
        pytest.skip("needs a cluster that may be thrown away")
    cluster = lifecycle.up(NAME)
    try:
        for zone, names in zip(ZONES, (installing.ON_TRUSTED, (*installing.ON_SANDBOX, "sandbox")), strict=True):
            lifecycle.load(cluster, [places.images() / f"{name}.tar" for name in names], [zone])
        kubectl = Kubectl(cluster.bin / "kubectl", cluster.kubeconfig(), cluster.kubectl_cache)
        own = Installation(kubectl, cluster.bin / "helm", cluster)
        own.install(VALUES)
        yield own
    finally:
        lifecycle.down(NAME)


def secrets_of(own: Installation) -> dict[tuple[str, str], Any]:
    found = [*own.kubectl.items("secrets", SYSTEM), *own.kubectl.items("secrets", HARNESSES)]
    ours = [each for each in found if each["metadata"]["name"].startswith("towline-")]
    return {(each["metadata"]["namespace"], each["metadata"]["name"]): each["data"] for each in ours}


def test_what_notes_say_works_as_it_is_written(own: Installation) -> None:
    """The smallest run there is, with the defaults of the chart."""
    run = {"apiVersion": "towline.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "hello"}}
    own.kubectl.apply(run | {"spec": {"prompt": "Say hello."}})

    own.kubectl("wait", "agentrun/hello", "--for=condition=Finished", "--timeout=2m")

    text = own.kubectl("get", "agentrun/hello", "-o", 'jsonpath={.status.result.text}{"\\n"}')
    assert text.startswith("This answer comes from a script")


def test_an_upgrade_keeps_every_secret_and_the_running_pods_and_brings_the_kinds_up_to_date(own: Installation) -> None:
    before = secrets_of(own)
    pods = {pod["metadata"]["uid"] for pod in own.kubectl.items("pods", SYSTEM)}
    version = own.kubectl.json("get", "crd", CRD)["spec"]["versions"][0]
    older = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
    own.kubectl("patch", "crd", CRD, "--type=json", f"--patch={older}".replace("'", '"'))

    own.install(VALUES)

    assert len(before) == 3
    assert secrets_of(own) == before
    assert own.kubectl.json("get", "crd", CRD)["spec"]["versions"][0] == version
    assert {pod["metadata"]["uid"] for pod in own.kubectl.items("pods", SYSTEM)} == pods


def test_a_policy_that_is_deleted_or_changed_is_put_back_and_the_next_upgrade_goes_through(own: Installation) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in own.kubectl.items("networkpolicies", SANDBOXES)}

    own.kubectl.delete("networkpolicy", SANDBOXES, "default-deny")
    own.kubectl.patch("networkpolicy", SANDBOXES, "from-gateway", {"ingress": [{}]})

    def whole() -> bool:
        found = own.kubectl.items("networkpolicies", SANDBOXES)
        return {each["metadata"]["name"]: each["spec"] for each in found} == policies

    wait_until("the policies are as before", whole, 30)
    own.install(VALUES)
    assert whole()


def test_nobody_enters_a_harness_but_its_log_can_be_read(own: Installation) -> None:
    team = Team(own, "team-a")
    team.enter()
    try:
        run = team.run("busy", call("sleep 600"), say("never said"))
        run.until("HarnessReady", "True")
        pod = run.harness()
        assert pod is not None
        name, where = pod["metadata"]["name"], f"--namespace={HARNESSES}"

        for line in (
            ("exec", name, where, "--", "python3", "-c", "0"),
            ("attach", name, where),
            ("port-forward", name, where, ":8080"),
            ("debug", name, where, "--image=localhost/towline-sandbox:dev", "--profile=restricted", "--", "true"),
        ):
            assert "harnesses are sealed" in own.kubectl.refused(*line)

        assert '"role": "harness"' in own.kubectl("logs", name, where)
    finally:
        team.leave()


def test_uninstall_leaves_nothing_but_the_kinds(own: Installation) -> None:
    """With a run at work, and one that is over."""
    team = Team(own, "team-b")
    team.enter()
    team.run("over", say("done"), tools=()).wait()
    team.run("busy", call("sleep 600"), say("never said")).until("SandboxReady", "True")

    own.uninstall()

    kubectl = own.kubectl
    assert kubectl.items("agentruns") == []
    namespaces = {each["metadata"]["name"] for each in kubectl.items("namespaces")}
    assert not {SYSTEM, HARNESSES, SANDBOXES} & namespaces
    kinds = (
        *("clusterroles", "clusterrolebindings", "roles", "rolebindings", "pods", "secrets", "configmaps"),
        *("services", "leases", "networkpolicies", "validatingadmissionpolicies", "persistentvolumes"),
        "validatingadmissionpolicybindings",
    )
    left = [
        f"{kind} {each['metadata'].get('namespace', '')}/{each['metadata']['name']}"
        for kind in kinds
        for each in kubectl.items(kind)
        if "towline" in each["metadata"]["name"] or "towline" in str(each["metadata"].get("labels"))
    ]
    assert left == []
    assert kubectl.find("agenttemplate", "team-b", "busy") is not None, "what a team wrote is the team's"


def test_it_can_be_installed_again_over_kinds_that_stayed(own: Installation) -> None:
    own.install(VALUES)

    assert own.kubectl.find("agenttemplate", SYSTEM, "default") is not None
