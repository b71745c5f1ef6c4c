"""The one request that a gateway makes of the API server: is this token good, and whose is it?

Called by `token_review.py`. Written out instead of taken from a client library, which would be most of the gateway's
image and memory. The answer is bounded in time and size, and nothing is repeated here.
"""

import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp

from towline.gateway.identity import IdentityUnavailable

SECONDS = 5.0
MAX_ANSWER_BYTES = 64 * 1024
CONNECTIONS = 10
"""A burst of new harnesses waits here instead of loading the API server."""

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


class ApiServer:
    """`folder` is where the kubelet keeps this pod's own token and the authority's certificate."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._token_file = url.rstrip("/") + PATH, folder / "token"
        authority = folder / "ca.crt"
        trust = ssl.create_default_context(cafile=str(authority)) if url.startswith("https://") else False
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=trust),
            timeout=aiohttp.ClientTimeout(total=SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def review(self, token: str, audience: str) -> dict[str, Any]:
        """The status of a TokenReview. Raises IdentityUnavailable when there is no answer, or none for us."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"audiences": [audience], "token": token},
        }
        try:
            # Read for each request: the kubelet rotates it in place.
            own = self._token_file.read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {own}", "Accept": "application/json"}
            async with self._http.post(self._url, json=body, headers=headers, allow_redirects=False) as response:
                raw = await _bounded(response)
                if response.status not in (200, 201):
                    raise IdentityUnavailable(f"the API server answered HTTP {response.status} to a TokenReview")
            status = json.loads(raw)["status"]
        except (aiohttp.ClientError, OSError, TimeoutError) as fault:
            raise IdentityUnavailable(f"the API server cannot be asked: {fault or type(fault).__name__}") from fault
        except (ValueError, KeyError, TypeError) as fault:
            raise IdentityUnavailable("the API server's answer is no TokenReview") from fault
        if not isinstance(status, dict):
            raise IdentityUnavailable("the API server's answer has no status")
        return status

    async def aclose(self) -> None:
        await self._http.close()


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > MAX_ANSWER_BYTES:
            raise IdentityUnavailable(f"the API server's answer exceeds {MAX_ANSWER_BYTES} bytes")
    return bytes(raw)
