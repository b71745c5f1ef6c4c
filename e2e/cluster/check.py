"""Prove that a cluster does what the end-to-end tests build on: `python -m e2e.cluster check`, about a minute.

Real pods on both nodes: placement, exec, logs, DNS, Services, NetworkPolicy within and across nodes, limits, image
volume, user namespace. It says nothing about towline. Uses two namespaces of its own and removes them.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from e2e.cluster import host, lifecycle, places, policy_engine
from e2e.cluster.check_objects import (
    HARNESS,
    RESTRICTED,
    SANDBOX,
    SERVER,
    ingress,
    namespace,
    pod,
    policy,
    runtime_class,
    service,
)
from e2e.cluster.layout import PAUSE_IMAGE, ZONES, Cluster
from e2e.cluster.shell import POLL_SECONDS, Failed
from images import build as images

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.5)
    print("reached")
except OSError:
    print("refused")
"""
BOX_SERVICE = f"box.{SANDBOX}.svc"
FIRST_UID = "print(open('/proc/self/uid_map').read().split()[1])"


def main(cluster: Cluster) -> int:
    if not cluster.zones:
        raise Failed(f"cluster {cluster.name} has no nodes: nothing to check here")
    host.require(host.TO_MAKE_IMAGES)
    lifecycle.load(cluster, [images.python_archive(places.images())], ZONES)
    check = Check(cluster)
    try:
        check.everything()
    finally:
        lifecycle.kubectl(cluster, "delete", "namespace", HARNESS, SANDBOX, "--ignore-not-found", "--timeout=60s")
    print(f"{check.passed} passed, {len(check.failed)} failed")
    return int(bool(check.failed))


class Check:
    """Runs the checks in order, prints one line each, counts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.passed = 0
        self.failed: list[str] = []

    def everything(self) -> None:
        self.pods()
        self.open_network()
        self.default_deny()
        self.allowed_again()
        self.without_engine()
        self.limits_and_runtimes()

    def pods(self) -> None:
        self.apply(namespace(HARNESS), namespace(SANDBOX))
        restricted = {"resources": {"limits": {"memory": "128Mi", "cpu": "500m"}}, "securityContext": RESTRICTED}
        self.apply(
            pod(HARNESS, "client", "trusted"),
            pod(SANDBOX, "box", "sandbox", container=restricted, automountServiceAccountToken=False),
            pod(SANDBOX, "peer", "sandbox"),
            pod(SANDBOX, "stray", "trusted", tolerations=[]),
            service(SANDBOX, "box"),
        )
        for where, name in ((HARNESS, "client"), (SANDBOX, "box"), (SANDBOX, "peer")):
            self.kubectl("wait", f"--namespace={where}", "--for=condition=Ready", f"pod/{name}", "--timeout=90s")
        self.expect(
            "pods run on the nodes they ask for",
            lambda: (self.node(HARNESS, "client"), self.node(SANDBOX, "box")),
            ("trusted", "sandbox"),
        )
        self.expect(
            "the taint keeps others off the trusted node", lambda: self.unplaced(SANDBOX, "stray"), "Unschedulable"
        )
        self.expect("logs", lambda: "GET /" in self.kubectl("logs", f"--namespace={SANDBOX}", "box"), True)
        self.expect(
            "exec runs as the pod's user", lambda: self.python(SANDBOX, "box", "import os; print(os.getuid())"), "10001"
        )
        self.expect("exec passes a failure", lambda: self.fails(SANDBOX, "box", "raise SystemExit(7)"), True)

    def open_network(self) -> None:
        box, client = self.ip(SANDBOX, "box"), self.ip(HARNESS, "client")
        self.reached("cluster DNS and Service", HARNESS, "client", f"{BOX_SERVICE}.cluster.local", 80)
        self.reached("across nodes", HARNESS, "client", box)
        self.reached("on one node", SANDBOX, "peer", box)
        self.reached("back across nodes", SANDBOX, "box", client)

    def default_deny(self) -> None:
        self.apply(policy(SANDBOX, "default-deny", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
        box, client = self.ip(SANDBOX, "box"), self.ip(HARNESS, "client")
        self.refused("across nodes", HARNESS, "client", box)
        self.refused("through the Service", HARNESS, "client", BOX_SERVICE, 80)
        self.refused("on one node", SANDBOX, "peer", box)
        self.refused("out to the other node", SANDBOX, "box", client)
        self.refused("out to the API server's Service", SANDBOX, "box", self.cluster.api_service, 443)
        self.refused("out to the API server's address", SANDBOX, "box", self.cluster.address, 6443)
        self.refused("out to its own kubelet", SANDBOX, "box", self.cluster.node("sandbox").ip, 10250)
        self.refused("out to the other kubelet", SANDBOX, "box", self.cluster.node("trusted").ip, 10250)
        self.expect("the kubelet's probe still passes", lambda: self.ready(SANDBOX, "box"), True)

    def allowed_again(self) -> None:
        self.apply(policy(SANDBOX, "from-client", ingress(to="box", namespace=HARNESS, app="client")))
        box, peer, client = self.ip(SANDBOX, "box"), self.ip(SANDBOX, "peer"), self.ip(HARNESS, "client")
        self.reached("the allowed client", HARNESS, "client", box)
        self.reached("the allowed client through the Service", HARNESS, "client", BOX_SERVICE, 80)
        self.refused("another target", HARNESS, "client", peer)
        self.refused("another client", SANDBOX, "peer", box)
        self.refused("the way out, still", SANDBOX, "box", client)

    def without_engine(self) -> None:
        policy_engine.stop(self.cluster, "sandbox")
        self.apply(pod(SANDBOX, "late", "sandbox"))
        self.kubectl("wait", f"--namespace={SANDBOX}", "--for=condition=Ready", "pod/late", "--timeout=60s")
        client = self.ip(HARNESS, "client")
        self.reached("engine stopped: a new pod has no rules", SANDBOX, "late", client)
        policy_engine.resume(self.cluster, "sandbox")
        self.refused("engine resumed: the new pod has rules", SANDBOX, "late", client)
        self.kubectl("delete", "networkpolicy", f"--namespace={SANDBOX}", "default-deny")
        self.reached("policy deleted: open again", SANDBOX, "late", client)

    def limits_and_runtimes(self) -> None:
        volume = {"name": "other", "image": {"reference": PAUSE_IMAGE, "pullPolicy": "Never"}}
        hungry = {"resources": {"limits": {"memory": "64Mi"}}}
        mounted = {"volumeMounts": [{"name": "other", "mountPath": "/other"}]}
        self.apply(
            runtime_class("sandboxed"),
            pod(HARNESS, "hungry", "trusted", program="x = bytearray(200 << 20)", container=hungry),
            pod(
                HARNESS,
                "volume",
                "trusted",
                program="import os; print(os.listdir('/other'))",
                container=mounted,
                volumes=[volume],
            ),
            pod(HARNESS, "userns", "trusted", program=FIRST_UID, hostUsers=False),
            pod(SANDBOX, "class", "sandbox", program="", runtimeClassName="sandboxed"),
        )
        self.expect("a memory limit kills", lambda: self.ended(HARNESS, "hungry"), "OOMKilled")
        self.expect("a runtime class is used", lambda: self.ended(SANDBOX, "class"), "Completed")
        self.expect(
            "an image is mounted as a volume",
            lambda: (self.ended(HARNESS, "volume"), self.output(HARNESS, "volume")),
            ("Completed", "['pause']"),
        )
        self.expect(
            "a user namespace maps root away",
            lambda: self.ended(HARNESS, "userns") == "Completed" and int(self.output(HARNESS, "userns")) > 0,
            True,
        )

    def expect(self, what: str, probe: Callable[[], Any], wanted: Any, seconds: float = 20) -> None:
        """The probe must give the wanted value in time, and once more right after: a rule that comes and goes fails."""
        begin = time.monotonic()
        while (got := probe()) != wanted and time.monotonic() - begin < seconds:
            time.sleep(POLL_SECONDS)  # noqa: TID251 - as in shell.wait_until
        good = got == wanted and (got := probe()) == wanted
        seconds = time.monotonic() - begin
        detail = "" if good else f": {got!r}, wanted {wanted!r}"
        print(f"{'ok  ' if good else 'FAIL'} {what}{detail} ({seconds:.1f} s)", flush=True)
        if good:
            self.passed += 1
        else:
            self.failed.append(what)

    def reached(self, what: str, where: str, name: str, address: str, port: int = SERVER) -> None:
        self.expect(f"reached: {what}", lambda: self.python(where, name, CONNECT, address, str(port)), "reached")

    def refused(self, what: str, where: str, name: str, address: str, port: int = SERVER) -> None:
        self.expect(f"refused: {what}", lambda: self.python(where, name, CONNECT, address, str(port)), "refused")

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return lifecycle.kubectl(self.cluster, *arguments, stdin=stdin, check=check)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, where: str, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.kubectl("get", "pod", f"--namespace={where}", name, "--output=json"))
        return answer

    def node(self, where: str, name: str) -> str:
        return str(self.get(where, name)["spec"].get("nodeName", ""))

    def unplaced(self, where: str, name: str) -> str:
        """Why the scheduler has found no node for the pod; nothing when it has, or has not looked yet."""
        conditions = self.get(where, name)["status"].get("conditions", [])
        return next((str(each.get("reason", "")) for each in conditions if each["type"] == "PodScheduled"), "")

    def ip(self, where: str, name: str) -> str:
        return str(self.get(where, name)["status"]["podIP"])

    def ready(self, where: str, name: str) -> bool:
        return all(status["ready"] for status in self.get(where, name)["status"]["containerStatuses"])

    def ended(self, where: str, name: str) -> str:
        """Why the pod's container ended; nothing as long as it has not."""
        for status in self.get(where, name)["status"].get("containerStatuses", []):
            return str(status["state"].get("terminated", {}).get("reason", ""))
        return ""

    def output(self, where: str, name: str) -> str:
        return self.kubectl("logs", f"--namespace={where}", name).strip()

    def fails(self, where: str, name: str, program: str) -> bool:
        try:
            self.python(where, name, program)
        except Failed as failure:
            return "exit code 7" in str(failure)
        return False

    def python(self, where: str, name: str, program: str, *arguments: str) -> str:
        """What the program prints in the pod. Raises Failed when it fails: then the check itself has failed."""
        return self.kubectl("exec", f"--namespace={where}", name, "--", "python3", "-c", program, *arguments).strip()
