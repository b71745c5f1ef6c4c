"""Which destinations a pod can reach: a program that tries them, and pods that run it wherever a test wants.

In a sandbox the program comes as a file of the workspace, and runs by the agent's own tool call.
"""

import json
import secrets

from e2e import sandbox_image
from e2e.cluster.layout import TRUSTED_TAINT, ZONE_LABEL
from e2e.cluster.shell import Failed, wait_until
from e2e.kubectl import Kubectl, Object
from images.build import reference

PROGRAM = '''\
"""Prints which of its arguments, `tcp,HOST,PORT` or `udp,HOST,PORT`, answer; the first says how long to wait before."""

import concurrent.futures
import json
import socket
import sys
import time

QUESTION = b"tl\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7version\\4bind\\0\\0\\x10\\0\\3"


def reached(place):
    kind, host, port = place.split(",")
    try:
        if kind == "tcp":
            socket.create_connection((host, int(port)), 2).close()
            return True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(2)
            asking.connect((host, int(port)))
            asking.send(QUESTION)
            return bool(asking.recv(512))
    except OSError:
        return False


time.sleep(float(sys.argv[1]))
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(json.dumps([place for place, there in zip(sys.argv[2:], pool.map(reached, sys.argv[2:])) if there]))
'''

SETTLE_SECONDS = 3
"""A fresh pod may have the whole network for a moment: that is what sandboxes wait for, and other pods do not."""
CANNOT_START = ("ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError")


def from_pod(
    kubectl: Kubectl,
    namespace: str,
    zone: str,
    places: list[str],
    labels: dict[str, str] | None = None,
    seconds: float = 60,
) -> list[str]:
    """The places that a pod of the namespace, on a node of the zone, reaches."""
    pod = probing_pod(zone, places, labels or {})
    name = pod["metadata"]["name"]
    kubectl.apply(pod, namespace=namespace)
    try:

        def ended() -> bool:
            status = (kubectl.find("pod", namespace, name) or {"status": {}})["status"]
            for each in status.get("containerStatuses") or ():
                if each["state"].get("waiting", {}).get("reason") in CANNOT_START:
                    raise Failed(f"probe {namespace}/{name}: {each['state']['waiting']}")
            return status.get("phase") in ("Succeeded", "Failed")

        wait_until(f"probe {namespace}/{name} has ended", ended, seconds)
        found: list[str] = json.loads(kubectl("logs", name, f"--namespace={namespace}"))
        return found
    finally:
        kubectl.delete("pod", namespace, name, "--grace-period=0", "--force")


def probing_pod(zone: str, places: list[str], labels: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"probe-{secrets.token_hex(3)}", "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {ZONE_LABEL: zone},
            "tolerations": [{"key": TRUSTED_TAINT, "operator": "Exists"}],
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "probe",
                    "image": reference(sandbox_image.NAME),
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-c", PROGRAM, str(SETTLE_SECONDS), *places],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
