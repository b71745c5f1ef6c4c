"""Which clusters this machine has: one folder each, with a record of what cannot be derived from its name.

All changes are made under one lock, since slots and kernel settings belong to the machine.
"""

import fcntl
import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import network, places
from e2e.cluster.layout import SLOTS, Cluster
from e2e.cluster.shell import Failed

RECORD = "cluster.json"


@contextmanager
def locked() -> Iterator[None]:
    places.state().mkdir(parents=True, exist_ok=True)
    with (places.state() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go when the process ends, however it ends
        yield


def find(name: str) -> Cluster | None:
    folder = places.state() / name
    try:
        record = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        return None
    return Cluster(name, record["slot"], tuple(record["zones"]), folder, Path(record["bin"]))


def get(name: str) -> Cluster:
    if (cluster := find(name)) is None:
        raise Failed(
            f"no cluster {name!r} in {places.state()}; there are: {', '.join(c.name for c in every()) or 'none'}"
        )
    return cluster


def every() -> list[Cluster]:
    found = (find(record.parent.name) for record in sorted(places.state().glob(f"*/{RECORD}")))
    return [cluster for cluster in found if cluster is not None]


def enter(name: str, zones: tuple[str, ...], bin_folder: Path) -> Cluster:
    """Take a free slot and record the cluster before anything of it exists, so that `down` always knows what to remove.

    The lock must be held.
    """
    taken = {cluster.slot for cluster in every()}
    for slot in SLOTS:
        cluster = Cluster(name, slot, zones, places.state() / name, bin_folder)
        if slot not in taken and unused(cluster):
            for folder in (cluster.folder, cluster.logs, cluster.processes):
                folder.mkdir(parents=True, exist_ok=True)
            record = {"slot": slot, "zones": zones, "bin": str(bin_folder)}
            (cluster.folder / RECORD).write_text(json.dumps(record))
            return cluster
    raise Failed(f"all {len(SLOTS)} slots of this machine are taken; `status` names the clusters here")


def unused(cluster: Cluster) -> bool:
    """Whether no cluster of another user or another state folder has this slot."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((cluster.loopback, 2379)) != 0 and network.missing(cluster.bridge)


def leave(cluster: Cluster) -> None:
    """Forget the cluster, its files with it. The record goes last: a removal cut short can be repeated."""
    for path in cluster.folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != RECORD:
            path.unlink()
    shutil.rmtree(cluster.folder)
