"""Write an OCI image archive from folders, one layer each. Deterministic: equal folders give equal bytes.

`ctr --namespace=k8s.io images import FILE` and `docker load` read it. Layers are not compressed: archives stay on the
machine that made them.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEDIA = "application/vnd.oci.image"
PLATFORM = {"architecture": "amd64", "os": "linux"}


@dataclass(frozen=True, slots=True)
class Config:
    """What a container of the image runs, unless its pod says otherwise. `env` as name and value."""

    entrypoint: Sequence[str] = ()
    user: str = ""  # UID:GID, numbers
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"


def write(archive: Path, name: str, layers: Sequence[Path], config: Config) -> int:
    """Write the image called `name` (with its tag) from `layers`, lowest first; returns the archive's bytes.

    A file appears under its own name only when it is whole.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f".{archive.name}")
    tars = [archive.with_name(f".{archive.name}.{number}") for number in range(len(layers))]
    try:
        described = [pack(folder, tar) for folder, tar in zip(layers, tars, strict=True)]
        blobs: dict[str, bytes | Path] = {layer["digest"]: tar for layer, tar in zip(described, tars, strict=True)}

        def blob(kind: str, content: dict[str, Any]) -> dict[str, Any]:
            raw = canonical(content)
            digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
            blobs[digest] = raw
            return {"mediaType": f"{MEDIA}.{kind}.v1+json", "digest": digest, "size": len(raw)}

        image = blob(
            "config",
            PLATFORM
            | {
                "config": runtime_config(config),
                "rootfs": {"type": "layers", "diff_ids": [x["digest"] for x in described]},
            },
        )
        manifest = blob(
            "manifest",
            {"schemaVersion": 2, "mediaType": f"{MEDIA}.manifest.v1+json", "config": image, "layers": described},
        )
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        index = {"schemaVersion": 2, "manifests": [manifest | {"platform": PLATFORM, "annotations": names}]}
        with tarfile.open(unfinished, "w") as tar:
            add(tar, "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
            add(tar, "index.json", canonical(index))
            for digest in sorted(blobs):
                add(tar, f"blobs/{digest.replace(':', '/')}", blobs[digest])
        unfinished.rename(archive)
    finally:
        for path in (unfinished, *tars):
            path.unlink(missing_ok=True)
    return archive.stat().st_size


def runtime_config(config: Config) -> dict[str, Any]:
    wanted = {
        "Entrypoint": list(config.entrypoint),
        "Env": [f"{name}={value}" for name, value in sorted(config.env.items())],
        "User": config.user,
        "WorkingDir": config.workdir,
    }
    return {key: value for key, value in wanted.items() if value}


def pack(folder: Path, tar: Path) -> dict[str, Any]:
    """Write one layer; returns its descriptor. Everything is root's, nothing is setuid, times are 0."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for path in walk(folder):
            info = out.gettarinfo(path, str(path.relative_to(folder)))
            if info is None or not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
                continue  # devices and sockets: the runtime makes its own /dev
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mode &= 0o1777
            if info.isreg():
                with path.open("rb") as content:
                    out.addfile(info, content)
            else:
                out.addfile(info)
    with tar.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"mediaType": f"{MEDIA}.layer.v1.tar", "digest": f"sha256:{digest}", "size": tar.stat().st_size}


def walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk(path)


def add(tar: tarfile.TarFile, name: str, content: bytes | Path) -> None:
    info = tarfile.TarInfo(name)
    if isinstance(content, bytes):
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        return
    info.size = content.stat().st_size
    with content.open("rb") as file:
        tar.addfile(info, file)


def canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
