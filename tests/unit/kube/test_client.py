"""What the client makes of an API server's answers; the answers are a small server's."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from towline.kube import login
from towline.kube.client import Kube
from towline.kube.errors import AlreadyExists, Conflict, NotLeading, Refused, TooMany, Unreachable
from towline.kube.kinds import AGENT_RUN, LEASE, MODEL_PROVIDER, POD

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: list[web.Response] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), json.loads(raw) if raw else None))
        return self.answers.pop(0) if self.answers else web.json_response({})

    def says(self, status: int, reason: str = "", message: str = "", **headers: str) -> None:
        self.answers.append(web.json_response({"reason": reason, "message": message}, status=status, headers=headers))


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def kube(server: tuple[Server, str]) -> AsyncIterator[Kube]:
    configuration = Configuration(host=server[1], api_key={"BearerToken": "Bearer token-1"})
    made = Kube(login.client(configuration), timeout_seconds=2)
    yield made
    await made.aclose()


async def test_an_absent_object_is_an_answer(kube: Kube, server: tuple[Server, str]) -> None:
    server[0].says(404, "NotFound")
    server[0].says(404, "NotFound")

    assert await kube.get(POD, "a", "b") is None
    assert await kube.delete(POD, "a", "b") is None


REFUSALS: list[tuple[int, str, str, type[Exception]]] = [
    (409, "AlreadyExists", "", AlreadyExists),
    (409, "Conflict", "", Conflict),
    (403, "Forbidden", "exceeded quota: pods", Refused),
    (422, "Invalid", "spec.x: bad", Refused),
    (500, "InternalError", "etcdserver: request is too large", Refused),
    (401, "Unauthorized", "", Unreachable),
    (500, "InternalError", "", Unreachable),
    (503, "ServiceUnavailable", "", Unreachable),
    (504, "Timeout", "", Unreachable),
]


@pytest.mark.parametrize(("status", "reason", "message", "error"), REFUSALS)
async def test_an_error_is_named_by_what_to_do_next(
    kube: Kube, server: tuple[Server, str], status: int, reason: str, message: str, error: type[Exception]
) -> None:
    server[0].says(status, reason, message)

    with pytest.raises(error) as raised:
        await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "b"}})

    assert type(raised.value) is error
    if isinstance(raised.value, Refused):
        assert raised.value.quota == ("quota" in message)


async def test_too_many_requests_say_when_to_come_back(kube: Kube, server: tuple[Server, str]) -> None:
    server[0].says(429, "TooManyRequests", **{"Retry-After": "7"})

    with pytest.raises(TooMany) as raised:
        await kube.get(POD, "a", "b")

    assert raised.value.seconds == 7


async def test_a_server_that_does_not_answer_is_given_up(server: tuple[Server, str]) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    silent = await asyncio.start_server(never, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    kube = Kube(login.client(Configuration(host=f"http://127.0.0.1:{port}")), timeout_seconds=0.2)

    with pytest.raises(Unreachable):
        await kube.get(POD, "a", "b")

    await kube.aclose()
    silent.close()


async def test_nobody_listens(kube: Kube) -> None:
    absent = Kube(login.client(Configuration(host="http://127.0.0.1:1")), timeout_seconds=2)

    with pytest.raises(Unreachable):
        await absent.get(POD, "a", "b")

    await absent.aclose()


async def test_a_list_is_read_page_by_page_and_begun_anew_when_a_page_comes_too_late(
    kube: Kube, server: tuple[Server, str]
) -> None:
    def page(names: list[str], token: str = "") -> web.Response:
        items = [{"metadata": {"name": name}} for name in names]
        return web.json_response({"metadata": {"continue": token}, "items": items or None})

    server[0].answers = [page(["a"], "next")]
    server[0].says(410, "Expired")
    server[0].answers += [page(["a"], "next"), page(["b"])]

    found = await kube.list(POD, "ns", labels="x=y", metadata_only=True)

    assert [each["metadata"]["name"] for each in found] == ["a", "b"]
    assert "labelSelector=x%3Dy" in server[0].requests[0][1]
    assert "PartialObjectMetadataList" in server[0].requests[0][2]["Accept"]
    assert "continue=next" in server[0].requests[-1][1]


async def test_writes_are_signed_and_counted_and_stop_when_leadership_is_lost(
    kube: Kube, server: tuple[Server, str]
) -> None:
    await kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "b"}})
    method, path, headers, _ = server[0].requests[0]
    assert (method, headers["Content-Type"]) == ("PATCH", "application/apply-patch+yaml")
    assert "fieldManager=towline-operator" in path
    assert "force=true" in path
    assert {k.lower(): v for k, v in headers.items()}["authorization"] == "Bearer token-1"
    assert kube.writes == 1

    def lost() -> None:
        raise NotLeading("lost")

    kube._may_write = lost
    with pytest.raises(NotLeading):
        await kube.delete(POD, "a", "b")

    assert len(server[0].requests) == 1


async def test_a_delete_names_the_uid(kube: Kube, server: tuple[Server, str]) -> None:
    await kube.delete(POD, "a", "b", uid="u", grace_seconds=0)

    body = server[0].requests[0][3]
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u"}, 0)


def test_paths() -> None:
    assert POD.path("a", "b", "status") == "/api/v1/namespaces/a/pods/b/status"
    assert AGENT_RUN.path(None) == "/apis/towline.dev/v1alpha1/agentruns"
    assert LEASE.path("s", "x") == "/apis/coordination.k8s.io/v1/namespaces/s/leases/x"
    assert MODEL_PROVIDER.path("ignored", "p") == "/apis/towline.dev/v1alpha1/modelproviders/p"
    assert POD.path("a", "../x") == "/api/v1/namespaces/a/pods/..%2Fx"
