"""Kernel settings of the whole machine that kubelet, kube-proxy or we change: saved before, put back after.

Settings under net.* of a node are the node's own: its network namespace goes away with them.
"""

import json
from contextlib import suppress
from pathlib import Path

#: kubelet sets all but the last (it wants a machine that reboots on an oops); we let the machine forward for the nodes.
CHANGED = (
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxbytes",
    "kernel.keys.root_maxkeys",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "net.ipv4.ip_forward",
)


def save(record: Path) -> None:
    """Note the present values, unless an earlier cluster that still stands has noted them."""
    if not record.exists():
        record.write_text(json.dumps({name: value(name) for name in CHANGED if path(name).exists()}, indent=1))


def restore(record: Path) -> None:
    if record.exists():
        for name, before in json.loads(record.read_text()).items():
            with suppress(OSError):  # one that this machine does not let us write was not changed either
                if value(name) != before:
                    put(name, before)
        record.unlink()


def put(name: str, value: str) -> None:
    path(name).write_text(value)


def value(name: str) -> str:
    return path(name).read_text().strip()


def path(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")
