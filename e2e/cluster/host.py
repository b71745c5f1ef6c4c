"""What the machine must have: checked before anything starts, installed by apt where that is possible.

Packages are Debian's names. On other systems the message names the programs, and a person installs them.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.shell import Failed, run

CNI_PLUGINS = Path("/usr/lib/cni")

#: What is looked for (a program, or a file by its path), and the Debian package that brings it.
TO_BUILD = {"gcc": "gcc", "pkg-config": "pkg-config", "/usr/include/seccomp.h": "libseccomp-dev"}
TO_RUN_CONTROL_PLANE = {"openssl": "openssl", "ip": "iproute2"}
TO_RUN_NODES = {
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    f"{CNI_PLUGINS}/bridge": "containernetworking-plugins",
}
PROBE = "tlprobe"
#: Argument: an empty folder. In namespaces of its own, so nothing of it stays.
TRY_NODE = """
mount -t tmpfs tmpfs "$1"
mkdir "$1/lower" "$1/upper" "$1/work" "$1/merged"
mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" overlay "$1/merged"
ip link set lo up
iptables --new-chain TOWLINE
iptables --append FORWARD --match conntrack --ctstate ESTABLISHED --jump TOWLINE
ipset create towline hash:ip
"""
TO_MAKE_IMAGES = {"mmdebstrap": "mmdebstrap"}


def require(needs: dict[str, str]) -> None:
    """Return when everything is there: root with apt gets what is missing installed, others get Failed with a list."""
    lacking = missing(needs)
    if lacking and os.geteuid() == 0 and shutil.which("apt-get"):
        install(sorted(set(lacking.values())))
        lacking = missing(lacking)
    if lacking:
        packages = " ".join(sorted(set(lacking.values())))
        raise Failed(f"missing: {', '.join(lacking)}; on Debian as root: apt-get install {packages}")


def require_root() -> None:
    if os.geteuid() != 0:
        raise Failed("nodes are made of namespaces, mounts and cgroups: this needs root")
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Failed(f"built and tried on Linux x86_64 only, this is {platform.system()} {platform.machine()}")


def require_kernel(groups: Iterable[Path]) -> None:
    """What nodes are made of, each tried once: an own network and mounts, overlays, bridges, rules, cgroups."""
    if not os.access("/dev/kmsg", os.R_OK):
        raise Failed("/dev/kmsg cannot be read, and the kubelet wants to")
    with tempfile.TemporaryDirectory(prefix="towline-") as folder:
        own = ("unshare", "--net", "--mount", "--propagation=private", "--", "sh", "-ec", TRY_NODE, "try", folder)
        if said := refusal(*own):
            raise Failed(f"this machine does not let us make a node: {said}")
    if said := refusal("ip", "link", "add", PROBE, "type", "bridge"):
        raise Failed(f"this machine does not let us make a network bridge: {said}")
    run("ip", "link", "delete", PROBE)
    if not (trees := list(groups)):
        raise Failed("this machine has no cgroup controllers, and the kubelet wants them")
    for tree in trees:
        try:
            (tree / PROBE).mkdir(exist_ok=True)
            (tree / PROBE).rmdir()
        except OSError as error:
            raise Failed(f"this machine does not let us make a cgroup: {error}") from error


def refusal(*command: str) -> str:
    """The last line of what a command says when it fails; nothing when it does not."""
    try:
        run(*command)
    except Failed as failure:
        return str(failure).splitlines()[-1]
    return ""


def missing(needs: dict[str, str]) -> dict[str, str]:
    return {what: package for what, package in needs.items() if not present(what)}


def present(what: str) -> bool:
    return Path(what).exists() if what.startswith("/") else shutil.which(what) is not None


def install(packages: Iterable[str]) -> None:
    print(f"apt: {' '.join(packages)}", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "PATH": os.defpath + ":/usr/sbin:/sbin"}
    run("apt-get", "update", "-qq", env=quiet)
    # Another step of the same CI may be installing, too.
    run(
        "apt-get",
        "-o",
        "DPkg::Lock::Timeout=120",
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
        *packages,
        env=quiet,
    )
