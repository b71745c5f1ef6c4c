"""Build every program of the cluster from Go's module proxy: `python -m e2e.cluster build`.

The result lies in a cache folder named by the sources' digest, so an unchanged tree builds once. A build that was cut
short goes on at the binary where it stopped. From nothing it takes about 15 CPU minutes and 3.3 GB of memory at most.
"""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import host, places
from e2e.cluster.shell import Failed
from e2e.cluster.toolchain import Toolchain


@dataclass(frozen=True, slots=True)
class Binary:
    name: str
    package: str
    module: str = "."  # the folder of its go.mod, beneath go/
    aliases: tuple[str, ...] = ()  # names the binary is also called by
    cgo: bool = False
    tags: str = ""


#: Small ones first: what is wrong with the toolchain shows within seconds.
BINARIES = (
    Binary("pause", "./cmd/pause"),
    Binary("runc", "github.com/opencontainers/runc", module="runc", cgo=True, tags="seccomp"),
    Binary("containerd-shim-runc-v2", "./cmd/containerd-shim-runc-v2"),
    Binary("kube", "./cmd/kube", aliases=("kubectl",)),
    Binary("containerd", "./cmd/containerd", aliases=("ctr",)),
    Binary("netpol", "./cmd/netpol"),
    Binary("coredns", "./cmd/coredns"),
    Binary("helm", "helm.sh/helm/v4/cmd/helm"),
)

#: In which variable a module's programs keep its version, by the folder of our go.mod.
VERSION_VARIABLES = {
    ".": {
        "k8s.io/kubernetes": "k8s.io/component-base/version.gitVersion",
        "github.com/containerd/containerd/v2": "github.com/containerd/containerd/v2/version.Version",
        "helm.sh/helm/v4": "helm.sh/helm/v4/internal/version.version",
    },
    "runc": {"github.com/opencontainers/runc": "main.version"},
}


def folder() -> Path:
    """Where the binaries of this tree's sources are, or will be."""
    digest = hashlib.sha256()
    for path in sorted(p for p in places.GO_SOURCES.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(places.GO_SOURCES)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return places.cache() / digest.hexdigest()[:16]


def built() -> Path:
    """The folder of the binaries; raises Failed when some are missing."""
    bin_folder = folder()
    if lacking := [binary.name for binary in BINARIES if not (bin_folder / binary.name).exists()]:
        raise Failed(f"not built yet: {', '.join(lacking)}; run: python -m e2e.cluster build")
    return bin_folder


def build(jobs: int) -> Path:
    """Build what is missing, at most `jobs` packages at a time; returns the folder of the binaries."""
    bin_folder = folder()
    todo = [binary for binary in BINARIES if not (bin_folder / binary.name).exists()]
    if todo:
        bin_folder.mkdir(parents=True, exist_ok=True)
        if any(binary.cgo for binary in todo):
            host.require(host.TO_BUILD)
        go = Toolchain.find()
        for binary in todo:
            compile_one(go, binary, bin_folder, jobs)
    for binary in BINARIES:
        for alias in binary.aliases:
            link = bin_folder / alias
            if not link.is_symlink():
                link.symlink_to(binary.name)
    return bin_folder


def compile_one(go: Toolchain, binary: Binary, bin_folder: Path, jobs: int) -> None:
    print(f"{binary.name:<24}", end="", flush=True)
    begin = time.monotonic()
    unfinished = bin_folder / f".{binary.name}"  # renamed when whole: a file under its name is always complete
    go.run(
        "build", "-p", str(jobs), "-trimpath", "-buildvcs=false", "-tags", binary.tags,
        "-ldflags", f"-s -w {versions(go, binary.module)}", "-o", str(unfinished), binary.package,
        module=places.GO_SOURCES / binary.module, cgo=binary.cgo,
    )  # fmt: skip
    size = unfinished.stat().st_size
    unfinished.rename(bin_folder / binary.name)
    print(f"{size / 1e6:6.1f} MB {time.monotonic() - begin:6.0f} s", flush=True)


def versions(go: Toolchain, module: str) -> str:
    """The linker flags that tell each program its version: without, kubelet reports v0.0.0, which is refused."""
    flags = []
    for path, variable in VERSION_VARIABLES[module].items():
        version = go.run("list", "-m", "-f", "{{.Version}}", path, module=places.GO_SOURCES / module).strip()
        flags.append(f"-X {variable}={version}")
        if path == "k8s.io/kubernetes":
            major, minor, _ = version.removeprefix("v").split(".")
            package = variable.removesuffix(".gitVersion")
            flags += [f"-X {package}.gitMajor={major}", f"-X {package}.gitMinor={minor}"]
    return " ".join(flags)
