"""What breaks on a cluster, broken on purpose: pods, nodes, quotas, policies, namespaces, and the operator itself.

A run either goes on, or waits and says why; it never runs a command twice, and never leaves anything behind.
"""

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.layout import ZONE_LABEL
from e2e.cluster.shell import wait_until
from e2e.installation import HARNESSES, SANDBOXES, SYSTEM, Installation
from e2e.kubectl import Object
from e2e.runs import API, Run, Team, assert_whole, call, say, system_pod

pytestmark = pytest.mark.timeout(300)

ONCE = "echo run >>ran; sleep 4; wc -l <ran"
"""Tells how often it ran."""
AT_ONCE = ("--grace-period=0", "--force")


def kill(installation: Installation, namespace: str, pod: Object | None) -> None:
    assert pod is not None
    installation.kubectl.delete("pod", namespace, pod["metadata"]["name"], *AT_ONCE, "--wait=false")


# -- pods --------------------------------------------------------------------------------------------------------------


def test_a_harness_that_is_killed_in_a_call_is_replaced_and_the_call_runs_once(team: Team) -> None:
    run = team.run("survivor", call(ONCE), say("done"))
    run.until_event("agent.tool_use")
    run.until("SandboxReady", "True")

    kill(team.installation, HARNESSES, run.harness())
    run.wait()

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.said() == ["1\n"]
    assert (run.status["epoch"], run.status["attempt"]) == (2, 0), "it did not crash: somebody deleted it"
    assert [each["epoch"] for each in run.status["attempts"]] == [1]
    assert "harness.lost" in run.types()
    assert_whole(run.events())


def test_a_gateway_that_is_killed_in_a_call_is_replaced_and_the_call_runs_once(team: Team) -> None:
    run = team.run("survivor", call(ONCE), say("done"))
    run.until("SandboxReady", "True")

    team.installation.kubectl(
        "delete", "pods", f"--namespace={SYSTEM}", "--selector=towline.dev/role=gateway", *AT_ONCE, "--wait=false"
    )
    run.wait(seconds=120)

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.said() == ["1\n"]
    assert_whole(run.events())


def test_an_image_that_cannot_be_pulled_is_named_and_ends_the_call(team: Team) -> None:
    missing = team.sandbox_class(provider="pod", image="localhost/no-such-image:1", startTimeoutSeconds=8)
    run = team.run("imageless", call("true"), say("gave up"), sandbox={"className": missing})

    told = run.until("SandboxReady", "False", "ImagePullFailed")
    run.wait()

    assert told["message"]
    assert run.results()[0]["outcome"] == "error"


def test_a_quota_that_is_used_up_holds_the_call_until_there_is_room(team: Team) -> None:
    kubectl = team.installation.kubectl
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    kubectl.apply(quota, namespace=SANDBOXES)
    try:
        kubectl.until(
            "is in force",
            "resourcequota",
            SANDBOXES,
            "none",
            lambda found: found and found.get("status", {}).get("hard"),
        )
        run = team.run("squeezed", call("echo at last"), say("done"))
        told = run.until("SandboxReady", "False", "QuotaExceeded")
        assert "exceeded quota" in told["message"]
    finally:
        kubectl.delete("resourcequota", SANDBOXES, "none")

    run.wait(seconds=120)
    assert run.said() == ["at last\n"]


@pytest.fixture
def no_trusted_node(installation: Installation) -> Iterator[None]:
    label(installation, "trusted", "none")
    yield
    label(installation, "none", "trusted")


def label(installation: Installation, before: str, after: str) -> None:
    """Moves the nodes of one zone to another."""
    line = ("label", "nodes", f"--selector={ZONE_LABEL}={before}", f"{ZONE_LABEL}={after}", "--overwrite")
    installation.kubectl(*line)


@pytest.mark.usefixtures("no_trusted_node")
def test_without_a_trusted_node_a_run_waits_and_says_so(team: Team) -> None:
    run = team.run("homeless", say("done"), tools=())

    told = run.until("HarnessReady", "False", "Unschedulable")
    assert "node" in told["message"]

    label(team.installation, "none", "trusted")
    run.wait()


# -- references --------------------------------------------------------------------------------------------------------


def test_a_run_waits_for_its_template_and_starts_when_that_appears(team: Team) -> None:
    kubectl = team.installation.kubectl
    run = Run(team, "early")
    spec = {"prompt": "go", "templateRef": {"name": "later"}}
    kubectl.apply(
        {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": "early"}, "spec": spec}, namespace=team.namespace
    )
    told = run.until("Accepted", "False", "TemplateNotFound")
    assert "later" in told["message"]
    assert run.status["phase"] == "Pending"

    kubectl.apply(*team.kinds("later", say("done"), tools=()), namespace=team.namespace)

    assert run.wait().outcome() == ("Succeeded", "Completed")


def test_a_run_waits_for_its_sandbox_class_and_for_its_provider(team: Team) -> None:
    kubectl = team.installation.kubectl
    run = team.run("early", say("done"), tools=(), sandbox={"className": f"{team.namespace}-later"})
    run.until("Accepted", "False", "SandboxClassNotFound")
    team.made.append(("sandboxclass", f"{team.namespace}-later"))
    kubectl.apply(
        {"apiVersion": API, "kind": "SandboxClass", "metadata": {"name": f"{team.namespace}-later"}, "spec": {}}
    )
    assert run.wait().outcome()[0] == "Succeeded"

    provider, template = team.kinds("orphan", say("done"), tools=())
    spec = {"prompt": "go", "templateRef": {"name": "orphan"}}
    orphan = {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": "orphan"}, "spec": spec}
    kubectl.apply(template, orphan, namespace=team.namespace)
    run = Run(team, "orphan")
    run.until("Accepted", "False", "ProviderNotFound")
    kubectl.apply(provider)
    assert run.wait().outcome()[0] == "Succeeded"


def test_a_run_waits_for_its_providers_secret(team: Team) -> None:
    kubectl, name = team.installation.kubectl, f"{team.namespace}-keyed"
    team.made.append(("modelprovider", name))
    provider = {"api": "AnthropicMessages", "secretRef": {"name": name}, "models": [{"name": "m"}]}
    spec = {"prompt": "go", "templateRef": {"name": "keyed"}}
    kubectl.apply(
        {"apiVersion": API, "kind": "ModelProvider", "metadata": {"name": name}, "spec": provider},
        {
            "apiVersion": API,
            "kind": "AgentTemplate",
            "metadata": {"name": "keyed"},
            "spec": {"model": {"provider": name}, "tools": []},
        },
        {"apiVersion": API, "kind": "AgentRun", "metadata": {"name": "keyed"}, "spec": spec},
        namespace=team.namespace,
    )

    told = Run(team, "keyed").until("Accepted", "False", "SecretNotFound")

    assert name in told["message"]


# -- the API -----------------------------------------------------------------------------------------------------------


def test_applying_again_changes_nothing_and_another_prompt_is_refused(team: Team) -> None:
    kubectl, namespace = team.installation.kubectl, f"--namespace={team.namespace}"
    manifests = team.manifests("twice", say("done"), tools=())
    kubectl.apply(*manifests, namespace=team.namespace)
    run = Run(team, "twice").wait()

    assert kubectl.apply(*manifests, namespace=team.namespace).count("unchanged") == 3
    manifests[-1]["spec"]["prompt"] = "something else"
    for options in ((), ("--server-side", "--force-conflicts")):
        said = kubectl.refused("apply", namespace, *options, "--filename=-", stdin=json.dumps(manifests[-1]))
        assert "prompt cannot be changed" in said
    assert run.get() is not None


def test_a_spec_of_300_kilobytes_is_refused_with_the_field_that_is_too_long(team: Team) -> None:
    manifest = team.manifests("long", say("done"), tools=())[-1]
    manifest["spec"]["prompt"] = "x" * 300_000

    said = team.installation.kubectl.refused(
        "create", f"--namespace={team.namespace}", "--filename=-", stdin=json.dumps(manifest)
    )

    assert "spec.prompt" in said
    assert "32768" in said


def test_a_run_that_is_deleted_and_made_again_at_once_is_another_run(team: Team) -> None:
    kubectl = team.installation.kubectl
    manifests = team.manifests("phoenix", call("sleep 2; echo risen"), say("done"))
    kubectl.apply(*manifests, namespace=team.namespace)
    run = Run(team, "phoenix")
    run.until("HarnessReady", "True")
    first = run.uid

    run.delete()
    kubectl.apply(*manifests, namespace=team.namespace)
    run.wait()

    assert run.uid != first
    assert run.outcome() == ("Succeeded", "Completed")
    assert run.said() == ["risen\n"]
    run.until_nothing_is_left(first)


def test_a_namespace_goes_with_live_runs_in_it(team: Team) -> None:
    kubectl = team.installation.kubectl
    run = team.run("doomed", call("sleep 600"), say("never said"))
    others = [
        team.run("answering", say("never said in full " * 50, milliseconds=10_000), tools=()),
        team.run("waiting", say("never said"), templateRef={"name": "nowhere"}, tools=()),
        team.run("paused", say("never said"), tools=(), suspend=True),
    ]
    run.until("SandboxReady", "True")
    others[0].until("HarnessReady", "True")
    uids = [each.uid for each in (run, *others)]

    kubectl("delete", "namespace", team.namespace, "--timeout=90s")

    for uid in uids:
        run.until_nothing_is_left(uid)


def test_a_network_policy_that_is_deleted_by_hand_comes_back(team: Team) -> None:
    kubectl = team.installation.kubectl
    for name in ("default-deny", "from-gateway"):
        before = kubectl.find("networkpolicy", SANDBOXES, name)
        assert before is not None

        kubectl.delete("networkpolicy", SANDBOXES, name)

        after = kubectl.until("is back", "networkpolicy", SANDBOXES, name, lambda found: found is not None, 30)
        assert after["spec"] == before["spec"]
        assert after["metadata"]["uid"] != before["metadata"]["uid"]

    assert team.run("after", call("echo safe"), say("done")).wait().said() == ["safe\n"]


@pytest.fixture
def no_new_policies(installation: Installation) -> Iterator[str]:
    """Nobody can make a network policy where the sandboxes are; yields the name of the rule that refuses it."""
    name = "e2e-no-new-policies"
    group = {"apiVersion": "admissionregistration.k8s.io/v1"}
    rule = {
        "apiGroups": ["networking.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["networkpolicies"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": SANDBOXES}}
    installation.kubectl.apply(
        group
        | {
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "false", "message": "not now"}],
            },
        },
        group
        | {
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": here},
            },
        },
    )
    probing = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "probe", "namespace": SANDBOXES},
        "spec": {"podSelector": {}},
    }

    def refused() -> bool:
        line = ("create", "--dry-run=server", "--filename=-")
        return not installation.kubectl(*line, stdin=json.dumps(probing), check=False)

    wait_until("new policies are refused", refused, 30)
    yield name
    lift(installation, name)  # if the test has not come so far


def lift(installation: Installation, name: str) -> None:
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        installation.kubectl("delete", kind, name, "--ignore-not-found")


def test_while_a_network_policy_is_gone_no_sandbox_is_made_and_the_call_waits(team: Team, no_new_policies: str) -> None:
    kubectl = team.installation.kubectl
    kubectl.delete("networkpolicy", SANDBOXES, "default-deny")

    with kubectl.recorded(SANDBOXES) as sandboxes:
        run = team.run("held", call("echo safe"), say("done"))
        told = run.until("SandboxReady", "False", "PolicyNotEnforced")
        assert "being restored" in told["message"]
        assert not [pod for pod in sandboxes.objects() if run.owns(pod)]
    lift(team.installation, no_new_policies)

    run.wait(seconds=120)
    assert run.said() == ["safe\n"]
    assert kubectl.find("networkpolicy", SANDBOXES, "default-deny") is not None


# -- the operator ------------------------------------------------------------------------------------------------------


def test_an_operator_that_is_killed_is_missed_by_nobody(team: Team) -> None:
    """Killed while a call runs: the run goes on without it, and its successor tells the outcome."""
    installation = team.installation
    run = team.run("orphan", call("sleep 3; echo went on"), say("done"))
    run.until("SandboxReady", "True")

    installation.kubectl.delete("pod", SYSTEM, system_pod(installation, "operator"), *AT_ONCE)
    run.wait(seconds=120)

    assert run.outcome() == ("Succeeded", "Completed")
    assert run.said() == ["went on\n"]
    assert run.status["epoch"] == 1
    assert_whole(run.events())


@pytest.fixture
def scaled(installation: Installation) -> Iterator[Installation]:
    """After it there is one operator and one store again."""
    yield installation
    for what in ("deployment/towline-operator", "statefulset/towline-store"):
        installation.kubectl("scale", what, "--replicas=1", f"--namespace={SYSTEM}")
        installation.kubectl("rollout", "status", what, f"--namespace={SYSTEM}", "--timeout=120s")


def scale(installation: Installation, what: str, replicas: int) -> None:
    installation.kubectl("scale", what, f"--replicas={replicas}", f"--namespace={SYSTEM}")
    role = what.rpartition("-")[2]
    if role == "store":
        installation.tunnel.close()  # it leads to one pod

    def there() -> bool:
        pods = installation.kubectl.items("pods", SYSTEM, f"towline.dev/role={role}")
        ready = [each for pod in pods for each in pod["status"].get("containerStatuses") or () if each["ready"]]
        return len(pods) == len(ready) == replicas

    wait_until(f"{what} has {replicas}", there, 120)


def test_what_happens_while_there_is_no_operator_is_made_up_for(team: Team, scaled: Installation) -> None:
    before = team.run("deleted-meanwhile", call("sleep 600"), say("never said"))
    before.until("SandboxReady", "True")
    uid = before.uid
    scale(scaled, "deployment/towline-operator", 0)

    before.delete("--wait=false")
    run = team.run("made-meanwhile", call("echo hello"), say("done"))
    assert run.status == {}
    scale(scaled, "deployment/towline-operator", 1)

    run.wait(seconds=120)
    assert run.said() == ["hello\n"]
    before.until_nothing_is_left(uid, 120)


def test_two_operators_do_the_work_of_one(team: Team, scaled: Installation) -> None:
    scale(scaled, "deployment/towline-operator", 2)

    runs = [team.run(f"run-{number}", call("echo once >>ran; wc -l <ran"), say("done")) for number in range(4)]
    for run in runs:
        run.wait(seconds=120)

    assert [run.said() for run in runs] == [["1\n"]] * 4
    assert [run.status["epoch"] for run in runs] == [1] * 4


def test_a_run_that_is_made_while_the_store_is_away_waits_and_says_so(team: Team, scaled: Installation) -> None:
    scale(scaled, "statefulset/towline-store", 0)

    run = team.run("patient", call("echo stored"), say("done"))
    run.until("HarnessReady", "False", "StoreUnavailable", 90)
    scale(scaled, "statefulset/towline-store", 1)

    run.wait(seconds=120)
    assert run.said() == ["stored\n"]
