"""What the chart grants, opens and runs, read from what Helm renders. Needs Helm: of e2e/cluster, or on the PATH."""

import json
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import build
from e2e.cluster.shell import Failed
from towline.api import defaults
from towline.api.agenttemplate import AgentTemplate
from towline.api.modelprovider import ModelProvider
from towline.api.sandboxclass import SandboxClass
from towline.manifests.config import PodConfig
from towline.manifests.network_policy import sandbox_policies
from towline.naming import ROLE_LABEL

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "towline"
SYSTEM, HARNESSES, SANDBOXES = "towline-system", "towline-harness", "towline-sandboxes"

Object = dict[str, Any]


def helm() -> str | None:
    try:
        return str(build.built() / "helm")
    except Failed:
        return shutil.which("helm")


pytestmark = pytest.mark.skipif(helm() is None, reason="needs Helm: python -m e2e.cluster build")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as home:
        program = helm()
        assert program is not None
        env = {"PATH": "", "HOME": home, **{f"HELM_{each}_HOME": home for each in ("CACHE", "CONFIG", "DATA")}}
        return subprocess.run([program, *words], capture_output=True, text=True, env=env, check=False)


@cache
def rendered(*settings: str) -> tuple[Object, ...]:
    """Every object of an installation with these `--set`s."""
    words = [word for setting in settings for word in ("--set-json", setting)]
    done = run("template", "towline", str(CHART), f"--namespace={SYSTEM}", *words)
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


def of_kind(*kinds: str, settings: tuple[str, ...] = ()) -> list[Object]:
    return [each for each in rendered(*settings) if each["kind"] in kinds]


def one(kind: str, name: str, namespace: str | None = None, settings: tuple[str, ...] = ()) -> Object:
    found = [
        each
        for each in of_kind(kind, settings=settings)
        if each["metadata"]["name"] == name and each["metadata"].get("namespace") == namespace
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {namespace}/{name}"
    return found[0]


def pods(settings: tuple[str, ...] = ()) -> dict[str, Object]:
    """Spec of each pod template, by its workload's name."""
    workloads = of_kind("Deployment", "StatefulSet", "Job", settings=settings)
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in workloads}


# -- rights ------------------------------------------------------------------------------------------------------------

PODS = "pods: create delete get list watch"
RIGHTS = {
    ("towline-operator", None): {
        "agentruns.towline.dev: delete get list patch watch",
        "agentruns/status.towline.dev: patch",
        "agenttemplates.towline.dev: get list watch",
        "modelproviders.towline.dev: get list watch",
        "sandboxclasses.towline.dev: get list watch",
        "events: create get update",
    },
    ("towline-operator", SYSTEM): {"leases.coordination.k8s.io: create get update"},
    ("towline-operator", HARNESSES): {PODS, "secrets: get"},
    ("towline-operator", SANDBOXES): {
        PODS,
        "persistentvolumeclaims: create delete get list",
        "networkpolicies.networking.k8s.io: create get list patch watch",
    },
    ("towline-operator", "default"): {
        "services[kubernetes]: get",
        "endpointslices.discovery.k8s.io: list",
    },
    ("towline-gateway", None): {"tokenreviews.authentication.k8s.io: create"},
    # Only while Helm upgrades.
    ("towline-crds", None): {
        "customresourcedefinitions.apiextensions.k8s.io: create",
        "customresourcedefinitions.apiextensions.k8s.io"
        "[agentruns.towline.dev agenttemplates.towline.dev modelproviders.towline.dev sandboxclasses.towline.dev]"
        ": get patch",
    },
    # Only while Helm uninstalls.
    ("towline-cleanup", None): {"agentruns.towline.dev: delete list patch"},
    ("towline-cleanup", HARNESSES): {"pods: delete list"},
    ("towline-cleanup", SANDBOXES): {"pods: delete list"},
}
"""Role and namespace (None: the whole cluster) to all that it allows. A change here moves the trust boundary."""


def allowed(rule: Object) -> set[str]:
    lines = set()
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            names = f"[{' '.join(sorted(rule['resourceNames']))}]" if "resourceNames" in rule else ""
            lines.add(f"{resource}{f'.{group}' if group else ''}{names}: {' '.join(sorted(rule['verbs']))}")
    return lines


def test_nobody_may_do_more_than_is_listed_here():
    roles = of_kind("ClusterRole", "Role")

    assert {
        (role["metadata"]["name"], role["metadata"].get("namespace")): set().union(*map(allowed, role["rules"]))
        for role in roles
    } == RIGHTS


def test_no_right_is_a_wildcard_or_opens_a_container_or_the_secrets_of_all():
    for role in of_kind("ClusterRole", "Role"):
        for rule in role["rules"]:
            words = [word for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
            assert "*" not in words
            assert not {word for word in words if re.match(r"pods/|nodes|escalate|bind|impersonate", word)}
            assert role["kind"] == "Role" or "secrets" not in words


def test_each_role_is_bound_to_the_one_account_of_its_name():
    roles = {
        (role["kind"], role["metadata"]["name"], role["metadata"].get("namespace"))
        for role in of_kind("ClusterRole", "Role")
    }
    bound = set()
    for binding in of_kind("ClusterRoleBinding", "RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": binding["roleRef"]["name"], "namespace": SYSTEM}
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"], binding["metadata"].get("namespace")))
    assert bound == roles


def test_only_who_asks_the_api_server_is_given_a_token_for_it():
    assert {name for name, pod in pods().items() if pod["automountServiceAccountToken"]} == {
        "towline-operator",
        "towline-gateway",
        "towline-crds",
        "towline-cleanup",
    }
    assert all(account["automountServiceAccountToken"] is False for account in of_kind("ServiceAccount"))


# -- pods --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["towline-operator", "towline-gateway", "towline-store", "towline-crds", "towline-cleanup"]
)
def test_every_pod_of_the_chart_meets_the_level_restricted_and_more(name: str):
    pod = pods()[name]

    assert pod["securityContext"] == {
        "fsGroup": 65532,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert "memory" in container["resources"]["limits"]
    assert all("exec" not in container.get(probe, {}) for probe in ("livenessProbe", "readinessProbe"))


def test_trusted_pods_stay_on_trusted_nodes():
    for pod in pods().values():
        assert pod["nodeSelector"] == {"towline.dev/zone": "trusted"}
        assert pod["tolerations"] == [
            {"effect": "NoSchedule", "key": "towline.dev/trusted", "operator": "Equal", "value": "true"}
        ]


def test_a_cluster_without_zones_needs_two_values():
    settings = ("trustedNodes.nodeSelector=null", "sandboxNodes.nodeSelector=null")

    assert {json.dumps(pod["nodeSelector"]) for pod in pods(settings).values()} == {"{}"}
    config = pod_config(settings)
    assert (dict(config.harness.placement.node_selector), dict(config.sandbox.placement.node_selector)) == ({}, {})


def pod_config(settings: tuple[str, ...] = ()) -> PodConfig:
    return PodConfig.from_json(one("ConfigMap", "towline-pods", SYSTEM, settings)["data"]["pods.json"])


def test_the_operator_can_read_what_the_chart_says_of_its_pods():
    config = pod_config()

    assert config.system_namespace == SYSTEM
    assert (config.harness.namespace, config.sandbox.namespace) == (HARNESSES, SANDBOXES)
    assert config.harness.image.reference == "localhost/towline-harness:dev"
    assert config.harness.gateway_url == f"http://towline-gateway.{SYSTEM}.svc:8080/mcp"
    assert config.sandbox.limits.memory_bytes == 2**30
    assert config.sandbox.longest_seconds == 604_800


def test_whole_references_go_before_registry_and_tag():
    settings = ('images.overrides={"tools": "registry.example/tools@sha256:abc"}', 'images.tag="2"')

    config = pod_config(settings)

    assert config.sandbox.tools.reference == "registry.example/tools@sha256:abc"
    assert config.harness.image.reference == "localhost/towline-harness:2"


def test_the_gateways_service_is_among_the_names_that_it_answers_to():
    env = {each["name"]: each.get("value") for each in pods()["towline-gateway"]["containers"][0]["env"]}
    host = re.sub(r"^http://([^:/]+).*", r"\1", pod_config().harness.gateway_url)

    assert host in env["TOWLINE_ALLOWED_HOSTS"].split(",")
    assert env["TOWLINE_HARNESS_SERVICE_ACCOUNT"] == pod_config().harness.service_account


# -- network -----------------------------------------------------------------------------------------------------------


def test_the_sandboxes_policies_are_the_ones_that_the_operator_puts_back():
    ours = [each for each in of_kind("NetworkPolicy") if each["metadata"]["namespace"] == SANDBOXES]

    assert ours == list(sandbox_policies(SANDBOXES, SYSTEM))


def openings(name: str, namespace: str, direction: str, settings: tuple[str, ...] = ()) -> set[str]:
    """`role or cidr:ports` for each way in or out."""
    spec = one("NetworkPolicy", name, namespace, settings)["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    found = set()
    for rule in spec.get(direction, ()):
        ports = ",".join(f"{each['port']}/{each['protocol']}" for each in rule["ports"])
        for peer in rule["from" if direction == "ingress" else "to"]:
            if "ipBlock" in peer:
                place = peer["ipBlock"]["cidr"] + (" but private" if peer["ipBlock"].get("except") else "")
            else:
                where = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
                place = f"{where}/{peer['podSelector']['matchLabels'][ROLE_LABEL]}" if "podSelector" in peer else where
            found.add(f"{place} {ports}")
    return found


DNS = "kube-system 53/UDP,53/TCP"
STORE = f"{SYSTEM}/store 6379/TCP"
API = "0.0.0.0/0 443/TCP,6443/TCP"


@pytest.mark.parametrize(
    ("name", "namespace", "ways_in", "ways_out"),
    [
        ("harness", HARNESSES, set(), {f"{SYSTEM}/gateway 8080/TCP", STORE, DNS, "0.0.0.0/0 but private 443/TCP"}),
        (
            "towline-gateway",
            SYSTEM,
            {f"{HARNESSES}/harness 8080/TCP"},
            {f"{SANDBOXES}/sandbox 8080/TCP", STORE, DNS, API},
        ),
        ("towline-operator", SYSTEM, set(), {STORE, DNS, API}),
        (
            "towline-store",
            SYSTEM,
            {f"{SYSTEM}/operator 6379/TCP", f"{SYSTEM}/gateway 6379/TCP", f"{HARNESSES}/harness 6379/TCP"},
            set(),
        ),
    ],
)
def test_each_trusted_part_reaches_what_it_needs_and_is_reached_by_who_needs_it(
    name: str, namespace: str, ways_in: set[str], ways_out: set[str]
):
    assert openings(name, namespace, "ingress") == ways_in
    assert openings(name, namespace, "egress") == ways_out


def test_the_harness_policy_holds_for_every_pod_of_its_namespace():
    assert one("NetworkPolicy", "harness", HARNESSES)["spec"]["podSelector"] == {}


def test_namespaces_enforce_the_level_restricted():
    for name in (HARNESSES, SANDBOXES):
        labels = one("Namespace", name)["metadata"]["labels"]
        for mode in ("enforce", "audit", "warn"):
            assert labels[f"pod-security.kubernetes.io/{mode}"] == "restricted"


def test_nobody_may_enter_a_harness():
    policy, binding = (
        one(kind, "towline-sealed-harness")["spec"]
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    )

    resources = {
        (op, each)
        for rule in policy["matchConstraints"]["resourceRules"]
        for op in rule["operations"]
        for each in rule["resources"]
    }
    assert resources == {
        ("CONNECT", "pods/exec"),
        ("CONNECT", "pods/attach"),
        ("CONNECT", "pods/portforward"),
        ("CONNECT", "pods/proxy"),
        ("UPDATE", "pods/ephemeralcontainers"),
    }
    assert policy["failurePolicy"] == "Fail"
    assert [each["expression"] for each in policy["validations"]] == ["false"]
    assert binding["validationActions"] == ["Deny"]
    assert binding["matchResources"]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": HARNESSES}


# -- secrets and the store ---------------------------------------------------------------------------------------------


def test_each_secret_lies_only_where_it_is_needed():
    assert {
        (each["metadata"]["namespace"], each["metadata"]["name"]): set(each["stringData"]) for each in of_kind("Secret")
    } == {
        (SYSTEM, "towline-installation"): {"secret"},
        (SYSTEM, "towline-store"): {"password", "url", "valkey.conf"},
        (HARNESSES, "towline-store"): {"url"},
    }


def test_a_password_is_made_and_the_same_everywhere():
    ours, theirs = (one("Secret", "towline-store", namespace)["stringData"] for namespace in (SYSTEM, HARNESSES))

    assert re.fullmatch(r"[A-Za-z0-9]{32}", ours["password"])
    assert ours["url"] == theirs["url"] == f"redis://:{ours['password']}@towline-store.{SYSTEM}.svc:6379/0"
    assert f"requirepass {ours['password']}\n" in ours["valkey.conf"]
    assert re.fullmatch(r"[A-Za-z0-9]{64}", one("Secret", "towline-installation", SYSTEM)["stringData"]["secret"])


def test_the_bundled_store_keeps_what_it_is_given_and_evicts_nothing():
    conf = one("Secret", "towline-store", SYSTEM)["stringData"]["valkey.conf"].splitlines()

    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(conf)


def test_an_external_store_replaces_the_bundled_one():
    settings = ('store.existingSecret="ours"', 'store.external=[{"cidr": "10.1.2.3/32", "port": 6380}]')

    assert not of_kind("StatefulSet", "PersistentVolumeClaim", settings=settings)
    assert pod_config(settings).harness.store_secret == "ours"
    for name, namespace in (("harness", HARNESSES), ("towline-gateway", SYSTEM), ("towline-operator", SYSTEM)):
        assert "10.1.2.3/32 6380/TCP" in openings(name, namespace, "egress", settings)


# -- kinds and defaults ------------------------------------------------------------------------------------------------


def test_the_charts_kinds_are_the_generated_ones():
    assert {path.name: path.read_text() for path in (CHART / "crds").iterdir()} == {
        path.name: path.read_text() for path in (ROOT / "crds").iterdir()
    }


@pytest.mark.parametrize(
    "settings",
    [(), ('defaults.modelProvider={"api": "AnthropicMessages", "secretRef": {"name": "anthropic"}}',)],
    ids=["built in", "with a model"],
)
def test_the_defaults_are_good_objects(settings: tuple[str, ...]):
    for model in (AgentTemplate, SandboxClass, ModelProvider):
        (written,) = of_kind(model.__name__, settings=settings)

        assert model.from_wire(written).metadata.name == "default"


def test_the_default_template_says_what_local_mode_says():
    spec = one("AgentTemplate", "default", SYSTEM)["spec"]

    assert spec["systemPrompt"] == defaults.SYSTEM_PROMPT
    limits = defaults.TEMPLATE.spec.limits
    assert spec["limits"] == {"maxTurns": limits.max_turns, "maxToolCalls": limits.max_tool_calls}


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ('surprise="x"', "surprise"),
        ("operator.replicas=-1", "/operator/replicas"),
        ('sandbox.delivery="Magic"', "/sandbox/delivery"),
        ('sandbox.forbidden=["redis:6379"]', "/sandbox/forbidden/0"),
        ('images.pullPolicy="Sometimes"', "/images/pullPolicy"),
        ('store.existingSecret="ours"', "/store/external"),
        ('networkPolicy.models=[{"cidr": "everywhere", "ports": [443]}]', "/networkPolicy/models/0/cidr"),
    ],
)
def test_a_wrong_value_is_named(setting: str, complaint: str):
    done = run("template", "towline", str(CHART), f"--namespace={SYSTEM}", "--set-json", setting)

    assert done.returncode != 0
    assert complaint in done.stderr


def test_helm_finds_no_fault():
    done = run("lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout
