"""Who reaches whom on a real network, and what a sandbox can see: tried from inside, by the agent's own tool calls."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import probe
from e2e.cluster import policy_engine
from e2e.cluster.layout import ZONES, Cluster
from e2e.installation import HARNESSES, SANDBOXES, SYSTEM, Installation
from e2e.runs import Run, Team, call, say

pytestmark = pytest.mark.timeout(300)

KUBELET, TOOLS = 10250, 8080


@dataclass(frozen=True)
class Places:
    """Destinations, by what they are; `other` is a sandbox of somebody else."""

    api: list[str]
    dns: list[str]
    kubelets: list[str]
    ours: dict[str, str]
    store_service: str

    @property
    def all(self) -> list[str]:
        metadata, internet = "tcp,169.254.169.254,80", "tcp,1.1.1.1,443"
        known = [*self.api, *self.dns, *self.kubelets, *self.ours.values(), self.store_service]
        return [*known, metadata, internet]


@pytest.fixture
def neighbour(team: Team) -> Run:
    """A run whose sandbox lives as long as the test."""
    run = team.run("neighbour", call("sleep 600"), say("never said"))
    run.until("SandboxReady", "True")
    return run


@pytest.fixture
def places(installation: Installation, cluster: Cluster, neighbour: Run) -> Places:  # noqa: ARG001 - it shall be there
    kubectl = installation.kubectl
    ports = {"gateway": 8080, "operator": 8081, "store": 6379, "harness": 8080, "sandbox": TOOLS}
    store = kubectl.json("get", "service", "towline-store", f"--namespace={SYSTEM}")["spec"]["clusterIP"]
    dns = [pod["status"]["podIP"] for pod in kubectl.items("pods", "kube-system", "k8s-app=kube-dns")]
    return Places(
        api=[f"tcp,{cluster.api_service},443", f"tcp,{cluster.address},6443"],
        dns=[f"{kind},{host},53" for kind in ("udp", "tcp") for host in (cluster.dns_service, *dns)],
        kubelets=[f"tcp,{node.ip},{KUBELET}" for node in cluster.nodes],
        ours={role: f"tcp,{installation.address(role)},{port}" for role, port in ports.items()},
        store_service=f"tcp,{store},6379",
    )


def test_a_sandbox_reaches_nothing_and_the_gateway_reaches_it(team: Team, places: Places) -> None:
    files = [{"path": "probe.py", "content": probe.PROGRAM}]
    lookup = "python3 -c 'import socket; socket.getaddrinfo(\"kubernetes.default.svc\", 443)'"
    run = team.run(
        "prober",
        call(f"python3 probe.py 0 {' '.join(places.all)}"),
        call(lookup, timeout_seconds=5),
        say("done"),
        workspace={"files": files},
    ).wait()

    tried, resolved = run.said()
    assert json.loads(tried) == []
    assert "gaierror" in resolved
    assert [result["outcome"] for result in run.results()] == ["ok", "ok"]


@pytest.mark.parametrize("zone", ZONES)
def test_a_pod_in_the_sandbox_namespace_reaches_nothing_on_either_node(
    installation: Installation, places: Places, zone: str
) -> None:
    role = {"towline.dev/role": "sandbox"}

    assert probe.from_pod(installation.kubectl, SANDBOXES, zone, places.all, role) == []


def test_the_probe_would_see_an_open_door(installation: Installation, places: Places) -> None:
    """From a namespace without policies: what is not ours is open, and what is ours is still closed."""
    reached = probe.from_pod(installation.kubectl, "default", "sandbox", places.all)

    assert set(reached) == {*places.api, *places.dns, *places.kubelets}


def test_a_harness_reaches_gateway_store_and_names_and_nothing_else(installation: Installation, places: Places) -> None:
    role = {"towline.dev/role": "harness"}

    reached = probe.from_pod(installation.kubectl, HARNESSES, "trusted", places.all, role)

    assert set(reached) - {*places.dns, "tcp,1.1.1.1,443"} == {
        places.ours["gateway"],
        places.ours["store"],
        places.store_service,
    }
    assert set(reached) & set(places.dns)


@pytest.mark.usefixtures("neighbour")
def test_the_machine_does_not_reach_a_sandbox(installation: Installation) -> None:
    with pytest.raises(OSError):
        socket.create_connection((installation.address("sandbox"), TOOLS), 2)


# -- what is in a sandbox ----------------------------------------------------------------------------------------------


def test_a_sandbox_holds_no_secret_and_no_right(team: Team) -> None:
    look = (
        "env; cat /proc/*/environ 2>&1 | tr '\\0' '\\n'; ls -a /var/run/secrets /run/secrets 2>&1;"
        "cat /proc/mounts; cat /etc/resolv.conf; true"
    )
    run = team.run(
        "looker",
        call(look),
        call("id -u; grep -E 'Cap(Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status | xargs; touch /x 2>&1; true"),
        call("head -c 1 /proc/1/mem; head -c 1 /proc/1/environ; kill -9 1; kill -TERM 1; echo still here"),
        say("done", milliseconds=1000),
    )
    run.until_event("agent.tool_result", 3)
    pod = run.sandbox()
    run.wait()

    seen, rights, attempts = run.said()
    assert pod is not None
    env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
    for secret in (env["TOWLINE_SANDBOX_KEY"], team.installation.password, "KUBERNETES_", "TOWLINE_", "serviceaccount"):
        assert secret not in seen
    assert "nameserver 127.0.0.1" in seen
    uid, status, denied = rights.splitlines()
    assert int(uid) == pod["spec"]["securityContext"]["runAsUser"] > 10000
    assert "CapEff: 0000000000000000" in status
    assert "CapBnd: 0000000000000000" in status
    assert "NoNewPrivs: 1" in status
    assert "Seccomp: 2" in status
    assert "Read-only file system" in denied
    assert attempts.count("ermission denied") == 2
    assert attempts.endswith("still here\n")
    assert "serviceAccountToken" not in json.dumps(pod["spec"])
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "POD", "--", "/usr/bin/python3", "-c", "1"),
        ("attach", "POD"),
        ("port-forward", "pod/POD", ":8080"),
        ("debug", "POD", "--image=localhost/towline-sandbox:dev", "--profile=restricted"),
    ],
    ids=lambda words: words[0],
)
def test_nobody_gets_into_a_harness(installation: Installation, neighbour: Run, words: tuple[str, ...]) -> None:
    harness = neighbour.harness()
    assert harness is not None
    line = [word.replace("POD", harness["metadata"]["name"]) for word in words]

    said = installation.kubectl.refused(line[0], f"--namespace={HARNESSES}", *line[1:])

    assert "harnesses are sealed" in said


# -- without enforcement -----------------------------------------------------------------------------------------------


@pytest.fixture
def without_policy_engine(cluster: Cluster) -> Iterator[None]:
    policy_engine.stop(cluster, "sandbox")
    yield
    policy_engine.resume(cluster, "sandbox")


@pytest.mark.usefixtures("without_policy_engine")
def test_without_a_policy_engine_no_tool_call_runs_and_the_condition_says_why(team: Team) -> None:
    run = team.run("careless", call("echo it ran"), say("gave up", milliseconds=2000))

    told = run.until("SandboxReady", "False", "PolicyNotEnforced")
    run.wait(seconds=120)

    assert "still reaches tcp:" in told["message"]
    assert "it ran" not in json.dumps([event.payload for event in run.events() if event.type == "agent.tool_result"])
