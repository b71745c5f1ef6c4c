"""Identity by TokenReview: a small API server, a real store, and a whole gateway in front."""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from towline.clock import utc_now
from towline.errors import Unauthenticated
from towline.events.event import RunRef
from towline.events.pods import forget_harness, register_harness
from towline.events.store import Store
from towline.gateway.api_server import ApiServer
from towline.gateway.app import gateway
from towline.gateway.identity import IdentityUnavailable
from towline.gateway.token_review import TokenReviewIdentity
from towline.settings import GatewaySettings, read

USERNAME = "system:serviceaccount:towline-harness:towline-harness"
NOW = utc_now().timestamp()


def token(pod: str, *, expires: float = NOW + 600) -> str:
    """Shaped like a real one; the signature is the fake's business."""
    payload = {"aud": ["towline-gateway"], "exp": int(expires), "pod": pod}
    return f"h.{base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip('=')}.s"


class FakeApiServer:
    """Knows every token that `token` makes, for callers that show its own."""

    def __init__(self) -> None:
        self.reviews: list[dict[str, Any]] = []
        self.status = 201
        self.answer: Any = None
        self.revoked: set[str] = set()

    async def review(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.reviews.append(body)
        if request.headers["Authorization"] != "Bearer the gateway's own":
            return web.json_response({"message": "forbidden"}, status=403)
        if self.answer is not None:
            return web.Response(body=self.answer, status=self.status)
        payload = body["spec"]["token"].split(".")[1]
        pod = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["pod"]
        if pod in self.revoked:
            status: dict[str, Any] = {"authenticated": False, "error": "service account token has been invalidated"}
        else:
            user = {"username": USERNAME, "extra": {"authentication.kubernetes.io/pod-name": [pod]}}
            status = {"authenticated": True, "user": user, "audiences": body["spec"]["audiences"]}
        return web.json_response({**body, "status": status}, status=self.status)


@pytest.fixture
async def api() -> AsyncIterator[tuple[FakeApiServer, str]]:
    fake, app = FakeApiServer(), web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", fake.review)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("the gateway's own\n")
    return tmp_path


@pytest.fixture
async def pod(store: Store) -> AsyncIterator[str]:
    """A registered harness pod of run `uid-1` in team-a, under epoch 3."""
    name = f"run-{secrets.token_hex(8)}-3"
    await register_harness(store, name, RunRef("team-a", "uid-1", "r"), 3)
    yield name
    await forget_harness(store, name)


@pytest.fixture
async def identity(api, folder: Path, store: Store) -> AsyncIterator[TokenReviewIdentity]:
    server = ApiServer(api[1], folder)
    yield TokenReviewIdentity(
        server, store, namespace="towline-harness", service_account="towline-harness", clock=lambda: NOW
    )
    await server.aclose()


async def test_a_harness_pods_token_stands_for_its_run_and_epoch(identity, api, pod):
    principal = await identity.verify(token(pod))

    assert (principal.namespace, principal.uid, principal.epoch) == ("team-a", "uid-1", 3)
    assert principal.expires == NOW + 60
    assert api[0].reviews[0]["spec"]["audiences"] == ["towline-gateway"]


async def test_an_answer_is_not_trusted_beyond_the_token(identity, pod):
    assert (await identity.verify(token(pod, expires=int(NOW) + 7))).expires == int(NOW) + 7


async def test_an_expired_token_is_refused_without_a_question(identity, api, pod):
    with pytest.raises(Unauthenticated, match="expired"):
        await identity.verify(token(pod, expires=NOW - 1))
    assert api[0].reviews == []


async def test_a_pod_that_holds_no_run_stands_for_none_and_is_to_ask_again(identity):
    with pytest.raises(IdentityUnavailable, match="run-strange-1 holds no run"):
        await identity.verify(token("run-strange-1"))


async def test_a_pod_whose_run_was_taken_away_stands_for_none_from_then_on(identity, store, pod):
    await identity.verify(token(pod))
    await forget_harness(store, pod)

    with pytest.raises(IdentityUnavailable):
        await identity.verify(token(pod))


async def test_a_registration_that_the_store_lost_and_got_back_is_as_good_as_before(identity, store, pod):
    await forget_harness(store, pod)
    with pytest.raises(IdentityUnavailable):
        await identity.verify(token(pod))
    await register_harness(store, pod, RunRef("team-a", "uid-1", "r"), 3)

    assert (await identity.verify(token(pod))).epoch == 3


async def test_a_token_of_a_deleted_pod_is_refused_though_it_was_good(identity, api, pod):
    await identity.verify(token(pod))
    api[0].revoked.add(pod)

    with pytest.raises(Unauthenticated, match="invalidated"):
        await identity.verify(token(pod))
    api[0].status, api[0].answer = 500, b"{}"
    with pytest.raises(IdentityUnavailable):  # nor does an outage make it good again
        await identity.verify(token(pod))


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, b"{}"),
        (429, b"{}"),
        (403, b"{}"),
        (302, b""),
        (201, b"no json"),
        (201, b"[]"),
        (201, b'{"status": null}'),
        (201, b'{"kind": "Status"}'),
        (201, b" " * 100_000),
    ],
)
async def test_an_api_server_that_gives_no_answer_is_not_the_callers_fault(identity, api, pod, status, answer):
    api[0].status, api[0].answer = status, answer

    with pytest.raises(IdentityUnavailable):
        await identity.verify(token(pod))


async def test_a_harness_that_is_known_goes_on_while_the_api_server_is_away(identity, api, pod):
    await identity.verify(token(pod))
    api[0].status, api[0].answer = 503, b""

    principal = await identity.verify(token(pod))

    assert (principal.uid, principal.epoch, principal.expires) == ("uid-1", 3, NOW + 5)


async def test_the_gateways_own_token_is_read_again_for_each_question(identity, folder, pod):
    (folder / "token").write_text("expired")
    with pytest.raises(IdentityUnavailable, match="403"):
        await identity.verify(token(pod))
    (folder / "token").write_text("the gateway's own")

    await identity.verify(token(pod))


async def test_nobody_listening_is_no_answer(folder, store, pod):
    server = ApiServer("http://127.0.0.1:9", folder)
    identity = TokenReviewIdentity(server, store, namespace="n", service_account="s", clock=lambda: NOW)
    try:
        with pytest.raises(IdentityUnavailable, match="cannot be asked"):
            await identity.verify(token(pod))
    finally:
        await server.aclose()


async def test_a_gateway_tells_refused_from_not_known_now(api, folder, valkey_url, store, pod):
    """401 ends a harness; 503 makes it ask again."""
    (folder / "secret").write_bytes(b"s" * 64)
    settings = read(
        GatewaySettings,
        {
            "TOWLINE_REDIS_URL": valkey_url,
            "TOWLINE_INSTALLATION_SECRET_FILE": str(folder / "secret"),
            "TOWLINE_IDENTITY_MODE": "token-review",
            "TOWLINE_API_SERVER": api[1],
            "TOWLINE_SERVICE_ACCOUNT_FOLDER": str(folder),
        },
    )

    async def status(bearer: str) -> tuple[int, dict[bytes, bytes]]:
        headers = {"host": "localhost", "authorization": f"Bearer {bearer}", "content-type": "text/plain"}
        scope = {
            "type": "http",
            "path": "/mcp",
            "method": "POST",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await front(scope, asyncio.Event().wait, send)
        return sent[0]["status"], dict(sent[0]["headers"])

    soon = utc_now().timestamp() + 600  # by the gateway's own clock: this module may have been imported long ago
    async with gateway(settings) as front:
        assert (await status(token(pod, expires=soon)))[0] == 415, "let in, and told about its media type"
        assert (await status(token("run-strange-1", expires=soon)))[0] == 503, "it may be registered again"
        api[0].revoked.add("run-revoked-1")
        assert (await status(token("run-revoked-1", expires=soon)))[0] == 401
        api[0].status, api[0].answer = 503, b""
        code, headers = await status(token("run-another-1", expires=soon))
        assert (code, headers[b"retry-after"]) == (503, b"1")
        assert (await status(token(pod, expires=soon)))[0] == 415, "known already"
