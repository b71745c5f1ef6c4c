"""Identity in a cluster: the token that the kubelet put into a harness pod, and the API server's word for it.

The review proves pod, service account and audience; whose harness the pod is was registered by the operator before it
made the pod (`events/pods.py`), since only the operator chooses names in that namespace, and is registered again when
the store has lost it. Nothing here is a secret that we would have to keep. Revocation takes as long as an answer is
remembered: the fence against a stale harness is its epoch, not its token.
"""

import base64
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from towline.errors import Unauthenticated
from towline.events.pods import harness_of
from towline.events.store import Store
from towline.gateway.identity import IdentityUnavailable, Principal
from towline.naming import GATEWAY_AUDIENCE

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 60.0
"""How long an answer is good. The API server itself remembers for ten seconds."""

MANAGE_SECONDS = 5.0
"""How long one that is due is used on while the API server is away; then it is asked again."""

MAX_TOKEN_CHARACTERS = 8192
"""Ours have 1,100."""

POD_NAME = "authentication.kubernetes.io/pod-name"


class Reviewer(Protocol):
    """`api_server.ApiServer`, or a test's."""

    async def review(self, token: str, audience: str) -> dict[str, Any]:
        """The status of a TokenReview; raises IdentityUnavailable."""
        ...


class TokenReviewIdentity:
    """Asks once a minute for each token; goes on with what it knows, until the token expires, while nobody answers."""

    def __init__(
        self,
        reviewer: Reviewer,
        store: Store,
        *,
        namespace: str,
        service_account: str,
        clock: Callable[[], float],
        size: int = 4096,
    ) -> None:
        self._reviewer, self._store, self._clock, self._size = reviewer, store, clock, size
        self._username = f"system:serviceaccount:{namespace}:{service_account}"
        self._known: OrderedDict[bytes, Principal] = OrderedDict()

    async def verify(self, token: str) -> Principal:
        expires, now = expiry_of(token), self._clock()
        if now >= expires:
            raise Unauthenticated("token refused: it has expired")
        digest = hashlib.sha256(token.encode()).digest()
        try:
            status = await self._reviewer.review(token, GATEWAY_AUDIENCE)
        except IdentityUnavailable as fault:
            known = self._known.get(digest)
            if known is None:
                raise
            log.warning("token not reviewed", extra={"fields": {"run": known.uid, "cause": str(fault)}})
            return replace(known, expires=min(expires, now + MANAGE_SECONDS))
        self._known.pop(digest, None)
        pod = pod_of(status, self._username)
        harness = await harness_of(self._store, pod)
        if harness is None:
            # A genuine pod was registered before it was made: a failover has lost that, and the operator says it again
            # when it looks; or the run was taken from the pod, which is about to go.
            raise IdentityUnavailable(f"pod {pod} holds no run")
        principal = Principal(
            harness.run.namespace, harness.run.uid, harness.epoch, min(expires, now + ASK_AGAIN_SECONDS)
        )
        self._known[digest] = principal
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return principal


def expiry_of(token: str) -> float:
    """When a token says that it expires, in Unix seconds: to be believed only after its review.

    Raises Unauthenticated for what cannot be one of our tokens, which spares the API server the question.
    """
    parts = token.split(".")
    if len(token) > MAX_TOKEN_CHARACTERS or len(parts) != 3:
        raise Unauthenticated("token refused: it is no service account token")
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        audience, expires = payload["aud"], payload["exp"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unauthenticated("token refused: its claims cannot be read") from None
    if not isinstance(audience, list) or GATEWAY_AUDIENCE not in audience:
        raise Unauthenticated(f"token refused: it is not for {GATEWAY_AUDIENCE}")
    if type(expires) not in (int, float):
        raise Unauthenticated("token refused: exp is no number")
    return float(expires)


def pod_of(status: Mapping[str, Any], username: str) -> str:
    """The pod to which a reviewed token is bound. Raises Unauthenticated unless everything is as it must be."""
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, Mapping):
        raise Unauthenticated(f"token refused by the API server: {str(status.get('error') or 'no reason given')[:200]}")
    # Echoed only by a server that looked at it; one that did not would accept tokens for everybody.
    if GATEWAY_AUDIENCE not in (status.get("audiences") or ()):
        raise Unauthenticated(f"token refused: the API server did not check the audience {GATEWAY_AUDIENCE}")
    if user.get("username") != username:
        raise Unauthenticated(f"token refused: it is of {str(user.get('username'))[:200]}, expected {username}")
    names = (user.get("extra") or {}).get(POD_NAME)
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise Unauthenticated("token refused: it is not bound to a pod")
    return names[0]
