"""Stop and continue a node's NetworkPolicy engine, for tests of what must not happen without one.

A stopped engine leaves its rules as they are: pods that exist stay as they were, new pods and policies have no rules.
"""

import signal

from e2e.cluster import node, processes
from e2e.cluster.layout import Cluster
from e2e.cluster.shell import wait_until


def stop(cluster: Cluster, zone: str) -> None:
    """Returns when the engine has really stopped. Stopping it twice is fine."""
    change(cluster, zone, signal.SIGSTOP, stopped=True)


def resume(cluster: Cluster, zone: str) -> None:
    """The engine then catches up by itself, within a second or so."""
    change(cluster, zone, signal.SIGCONT, stopped=False)


def change(cluster: Cluster, zone: str, number: signal.Signals, *, stopped: bool) -> None:
    name = node.daemon(cluster.node(zone), "netpol")
    processes.send(processes.required(cluster, name), number)
    wait_until(f"{name}: {number.name}", lambda: (processes.required(cluster, name).state == "T") == stopped, seconds=5)
