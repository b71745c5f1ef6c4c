"""Who calls: the port that turns a bearer token into a run, and the cache in front of it.

`front.py` asks for each request; nothing below ever sees a token. Issuers are adapters (`local_identity.py` on a
laptop, TokenReview in a cluster). An MCP session is never an identity.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from towline.errors import TowlineError, Unauthenticated


class IdentityUnavailable(TowlineError):
    """Whoever can say whose token it is does not answer. Nothing is known of the token; ask again."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The run a caller speaks for, and under which epoch. `expires` is in Unix seconds."""

    namespace: str
    uid: str
    epoch: int
    expires: float


class Identity(Protocol):
    """May be called concurrently and for the same token; may wait on the network."""

    async def verify(self, token: str) -> Principal:
        """Raises Unauthenticated for a token that names no run of ours; where an issuer or the store must be asked,
        IdentityUnavailable and StoreUnavailable."""
        ...


def bearer(authorization: str) -> str:
    """The token of an `Authorization` header's value; raises Unauthenticated when there is none."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("expected the header Authorization: Bearer <token>")
    return token.strip()


class CachedIdentity:
    """Asks the inner identity once per token and trusts the answer until the token expires.

    Keyed by the token's digest, so that a memory dump of the cache is worth nothing. Refusals are not cached: a caller
    that was refused may become known a moment later, and a flood of bad tokens must not push out the good ones.
    """

    def __init__(self, inner: Identity, *, clock: Callable[[], float], size: int = 4096) -> None:
        self._inner, self._clock, self._size = inner, clock, size
        self._known: OrderedDict[bytes, Principal] = OrderedDict()

    async def verify(self, token: str) -> Principal:
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known.expires:
            self._known.move_to_end(digest)
            return known
        self._known.pop(digest, None)
        principal = await self._inner.verify(token)
        self._known[digest] = principal
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return principal
