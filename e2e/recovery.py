"""When a cluster is itself again after its API server was away, or a node was cut off.

Nodes that were silent count as NotReady for a while; scheduler, kubelets and policy engines ask again only every 30 s
by then, so that the next pod would wait, or be there before its rules.
"""

from datetime import datetime
from functools import partial

from e2e import probe
from e2e.cluster.layout import ZONES, Cluster
from e2e.cluster.shell import wait_until
from e2e.installation import SANDBOXES, SYSTEM, Installation
from e2e.kubectl import Object
from towline.clock import utc_now


def until_back(cluster: Cluster, installation: Installation) -> None:
    """Every node and what serves is Ready, and a new pod on each node runs and has its rules."""
    since, kubectl = utc_now(), installation.kubectl

    def heard() -> bool:
        beats = [each["spec"]["renewTime"] for each in kubectl.items("leases", "kube-node-lease")]
        serving = [*kubectl.items("nodes"), *kubectl.items("pods", "kube-system"), *kubectl.items("pods", SYSTEM)]
        ended = ("Succeeded", "Failed")
        return all(datetime.fromisoformat(beat) > since for beat in beats) and all(
            is_ready(each) for each in serving if each["status"].get("phase") not in ended
        )

    def closed(zone: str) -> bool:
        api = [f"tcp,{cluster.api_service},443"]
        return probe.from_pod(kubectl, SANDBOXES, zone, api, {"towline.dev/role": "sandbox"}, seconds=150) == []

    wait_until("nodes and system are back", heard, 180)
    for zone in ZONES:
        wait_until(f"new pods on {zone} run and are closed", partial(closed, zone), 180)


def is_ready(obj: Object) -> bool:
    conditions = obj["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
