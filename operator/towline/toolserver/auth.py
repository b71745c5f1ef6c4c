"""Who may use this tool server, and how it proves itself: HMAC-SHA256 under the sandbox's key, both ways.

Called by `server.py`. The tool server answers a nonce with a proof before it is sent anything; the gateway shows a
value bound to this process's random instance, so what it shows here is worthless to another or a restarted server.
"""

import hashlib
import hmac
import os
import re

_NONCE = re.compile(r"[0-9A-Fa-f]{16,128}")


class Keyholder:
    """The key and this process's instance."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.instance = os.urandom(16).hex()
        self._expected = b"Towline " + self._mac("towline-gateway:" + self.instance).encode()

    def proof(self, nonce: str) -> str:
        """What shows a caller that made up `nonce` that we hold the key. Raises ValueError for a malformed nonce."""
        if not _NONCE.fullmatch(nonce):
            raise ValueError("nonce must be 16 to 128 hexadecimal digits")
        return self._mac(f"towline-toolserver:{nonce}:{self.instance}")

    def admits(self, authorization: str) -> bool:
        """Whether an Authorization header shows the key. Takes the same time for every wrong value."""
        return hmac.compare_digest(authorization.encode(), self._expected)

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
