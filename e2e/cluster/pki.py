"""Certificates and kubeconfigs of one cluster, by openssl: one authority, one pair for each component.

Everything is made anew by `up` and lives as long as the cluster, at most 30 days.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.layout import Cluster
from e2e.cluster.shell import run

EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
DAYS = "30"


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path


def make_authority(cluster: Cluster) -> None:
    """The authority, and the key that signs service account tokens: RSA, as on the clusters people have."""
    cluster.pki.mkdir(parents=True, exist_ok=True)
    authority = ca(cluster)
    run(
        "openssl", "req", "-x509", *EC_KEY, "-days", DAYS, "-subj", f"/CN={cluster.name}",
        "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        "-keyout", authority.key, "-out", authority.certificate,
    )  # fmt: skip
    tokens = token_keys(cluster)
    run("openssl", "genrsa", "-out", tokens.key, "2048")
    run("openssl", "rsa", "-in", tokens.key, "-pubout", "-out", tokens.certificate)


def ca(cluster: Cluster) -> Pair:
    return Pair(cluster.pki / "ca.crt", cluster.pki / "ca.key")


def token_keys(cluster: Cluster) -> Pair:
    """Public and private key of service account tokens."""
    return Pair(cluster.pki / "tokens.pub", cluster.pki / "tokens.key")


def pair(cluster: Cluster, name: str, subject: str, also_known_as: Sequence[str] = ()) -> Pair:
    """A certificate for both ends of a connection; `also_known_as` as `DNS:…` and `IP:…`. Made once, then returned."""
    made = Pair(cluster.pki / f"{name}.crt", cluster.pki / f"{name}.key")
    if made.certificate.exists():
        return made
    request, extensions = cluster.pki / f"{name}.csr", cluster.pki / f"{name}.ext"
    lines = ["keyUsage=critical,digitalSignature,keyEncipherment", "extendedKeyUsage=serverAuth,clientAuth"]
    if also_known_as:
        lines.append(f"subjectAltName={','.join(also_known_as)}")
    extensions.write_text("\n".join(lines) + "\n")
    run("openssl", "req", *EC_KEY, "-subj", subject, "-keyout", made.key, "-out", request)
    authority = ca(cluster)
    run(
        "openssl", "x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key,
        "-CAcreateserial", "-days", DAYS, "-extfile", extensions, "-out", made.certificate,
    )  # fmt: skip
    return made


def kubeconfig(cluster: Cluster, name: str, subject: str) -> Path:
    """A kubeconfig with everything inside, so that it may be copied elsewhere on the machine."""
    me = pair(cluster, name, subject)
    path = cluster.kubeconfig(name)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster.name,
        "clusters": [
            {
                "name": cluster.name,
                "cluster": {"server": cluster.api, "certificate-authority-data": inline(ca(cluster).certificate)},
            }
        ],
        "users": [
            {
                "name": name,
                "user": {"client-certificate-data": inline(me.certificate), "client-key-data": inline(me.key)},
            }
        ],
        "contexts": [{"name": cluster.name, "context": {"cluster": cluster.name, "user": name}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
