"""The command line: `python -m e2e.cluster VERB`, from the top of the repository. `--help` tells the verbs."""

import argparse
import os
import sys
import time
from pathlib import Path

from e2e.cluster import build, check, lifecycle, policy_engine, processes, registry, system_images
from e2e.cluster.layout import ZONES
from e2e.cluster.shell import Failed


def main() -> int:
    arguments = parser().parse_args()
    try:
        return carry_out(arguments)
    except Failed as failure:
        print(f"e2e.cluster {arguments.verb}: {failure}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m e2e.cluster", description="A real two-node Kubernetes cluster, as root, without Docker."
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, *, named: bool = True) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        if named:
            added.add_argument("--name", default="e2e", help="which cluster (default: %(default)s)")
        return added

    building = verb("build", "build all programs and the cluster's own images, once", named=False)
    building.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="packages at a time (default: %(default)s)"
    )
    verb("preflight", "whether this machine can run nodes; if not, one line says why", named=False)
    verb("up", "start the cluster").add_argument(
        "--control-plane-only", action="store_true", help="etcd and the API server alone"
    )
    verb("down", "remove the cluster and all it left")
    verb("status", "its daemons and their memory; exit status 1 when one has ended")
    verb("env", "shell lines that make kubectl and helm use it")
    loading = verb("load", "bring OCI archives to the nodes; pods name them with imagePullPolicy Never")
    loading.add_argument("archive", nargs="+", type=Path)
    loading.add_argument("--node", choices=ZONES, help="to this node alone (default: all)")
    netpol = verb("netpol", "stop or resume a node's NetworkPolicy engine")
    netpol.add_argument("node", choices=ZONES)
    netpol.add_argument("action", choices=("stop", "resume"))
    verb("check", "prove that pods, DNS, Services, policies and limits work")
    return top


def carry_out(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    match arguments.verb:
        case "build":
            bin_folder = build.build(arguments.jobs)
            system_images.make(bin_folder)
            print(f"{bin_folder} ({time.monotonic() - begin:.0f} s)")
        case "preflight":
            lifecycle.check_machine(ZONES)
        case "up":
            cluster = lifecycle.up(arguments.name, control_plane_only=arguments.control_plane_only)
            print(
                f"{cluster.name} is up after {time.monotonic() - begin:.1f} s: export KUBECONFIG={cluster.kubeconfig()}"
            )
        case "down":
            was_there = lifecycle.down(arguments.name)
            print(
                f"{arguments.name} is down after {time.monotonic() - begin:.1f} s"
                if was_there
                else f"no cluster {arguments.name}"
            )
        case "status":
            cluster = registry.get(arguments.name)
            print("\n".join(lifecycle.status(cluster)))
            return int(any(daemon.state == "-" for daemon in processes.recorded(cluster)))
        case "env":
            print("\n".join(lifecycle.environment(registry.get(arguments.name))))
        case "load":
            cluster = registry.get(arguments.name)
            lifecycle.load(cluster, arguments.archive, [arguments.node] if arguments.node else cluster.zones)
        case "netpol":
            action = policy_engine.stop if arguments.action == "stop" else policy_engine.resume
            action(registry.get(arguments.name), arguments.node)
        case "check":
            return check.main(registry.get(arguments.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
