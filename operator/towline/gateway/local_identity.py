"""The local issuer: a JWT signed with a key that only the launcher and the gateway read.

The launcher mints one token per harness process; the gateway verifies it. In a cluster the kubelet's projected token
takes this place. It keeps no list of issued tokens: a token lives as long as it says.
"""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt

from towline.errors import Invalid, Unauthenticated
from towline.gateway.identity import Principal
from towline.naming import GATEWAY_AUDIENCE

ISSUER = "towline-local"
ALGORITHM = "HS256"
MINIMUM_KEY_BYTES = 32
LEEWAY_SECONDS = 5
"""Issuer and gateway share one clock; this covers its small steps."""

_SUBJECT = re.compile(r"^([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/([A-Za-z0-9][-A-Za-z0-9]{0,62})$")
"""`<namespace>/<uid>`: both become part of Redis keys, so nothing but these characters may pass."""


def read_key(path: Path) -> bytes:
    """The issuer's key from its file; surrounding white space does not count."""
    key = path.read_bytes().strip()
    if len(key) < MINIMUM_KEY_BYTES:
        raise Invalid(f"{path}: {len(key)} bytes; a signing key has at least {MINIMUM_KEY_BYTES}")
    return key


def mint(key: bytes, *, namespace: str, uid: str, epoch: int, now: datetime, lifetime: timedelta) -> str:
    """A token with which a harness speaks for one run under one epoch."""
    claims = {
        "iss": ISSUER,
        "aud": GATEWAY_AUDIENCE,
        "sub": f"{namespace}/{uid}",
        "epoch": epoch,
        "iat": now,
        "exp": now + lifetime,
    }
    return jwt.encode(claims, key, algorithm=ALGORITHM)


class LocalIdentity:
    """Verifies what `mint` signed; the algorithm is ours to name, never the token's."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    async def verify(self, token: str) -> Principal:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                audience=GATEWAY_AUDIENCE,
                issuer=ISSUER,
                leeway=LEEWAY_SECONDS,
                # Of our own key, so it is good; a clock that was set back makes it look as if it came from the future.
                options={"require": ["aud", "iss", "exp", "sub"], "verify_iat": False},
            )
        except jwt.InvalidTokenError as fault:
            raise Unauthenticated(f"token refused: {fault}") from fault
        return _principal(claims)


def _principal(claims: dict[str, Any]) -> Principal:
    subject, epoch = _SUBJECT.fullmatch(str(claims["sub"])), claims.get("epoch")
    if subject is None:
        raise Unauthenticated("token refused: sub is not <namespace>/<uid>")
    if type(epoch) is not int or epoch < 1:
        raise Unauthenticated("token refused: epoch is not a whole number from 1")
    return Principal(subject[1], subject[2], epoch, float(claims["exp"]))
