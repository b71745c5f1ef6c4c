"""A real store, real gateway processes, and a small real tool server that a test can steer."""

import asyncio
import contextlib
import hashlib
import hmac
import io
import json
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

from tests.processes import die_with_the_test
from towline.api.snapshot import Model, Policy, Rule, Sandbox, Snapshot
from towline.clock import utc_now
from towline.events import runs as run_events
from towline.events import sandbox as sandbox_events
from towline.events.event import Event, RunRef
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.gateway.app import served
from towline.gateway.listening import BoundedProtocol, listening_socket
from towline.gateway.local_identity import LocalIdentity, mint
from towline.naming import CALL_ID_META, sandbox_key, sandbox_name

VERSION = "2026-07-28"
TOOLS = ("exec", "read_file", "write_file", "edit_file", "list_dir", "search")


class ToolServerDouble:
    """Speaks the tool server's protocol on a unix socket; what `exec` does is the word its command begins with.

    `echo TEXT` answers at once; `hold NAME` waits until the test releases NAME; `die` closes the connection unanswered.
    """

    def __init__(self, folder: Path, name: str, key: str) -> None:
        self.folder, self.name, self.key = folder, name, key.encode()
        self.instance = secrets.token_hex(16)
        self.address = f"unix:{folder / (name + '.sock')}"
        self.executions: list[str] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.seeded: list[list[dict[str, Any]]] = []
        self.began = asyncio.Event()
        self.hangs = False
        """Set: requests are taken, none is answered any more."""
        self._held: dict[str, asyncio.Event] = {}
        self.results: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._cancelled: set[str] = set()
        self.transports: set[asyncio.BaseTransport] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_post("/v1/hello", self._hello)
        app.router.add_post("/v1/seed", self._seed)
        app.router.add_put("/v1/calls/{call_id}", self._call)
        app.router.add_delete("/v1/calls/{call_id}", self._cancel)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, self.address.removeprefix("unix:")).start()

    async def stop(self) -> None:
        """Gone without a word, as a killed pod is."""
        for task in self.results.values():
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def release(self, name: str) -> None:
        self._held.setdefault(name, asyncio.Event()).set()

    def _mac(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    async def _record(self, request: web.Request) -> bytes:
        body = await request.read()
        self.requests.append((request.method, request.path, dict(request.headers), body))
        if self.hangs:
            await asyncio.Event().wait()
        return body

    async def _hello(self, request: web.Request) -> web.Response:
        nonce = json.loads(await self._record(request))["nonce"]
        proof = self._mac(f"towline-toolserver:{nonce}:{self.instance}")
        said = {"protocol": 1, "instance": self.instance, "proof": proof, "workspace": "/w", "shell": "/bin/sh"}
        return web.json_response({**said, "seeded": bool(self.seeded)})

    def _authorised(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Towline {self._mac(f'towline-gateway:{self.instance}')}":
            raise web.HTTPUnauthorized

    async def _seed(self, request: web.Request) -> web.Response:
        self.seeded.append(json.loads(await self._record(request))["files"])
        self._authorised(request)
        return web.json_response({"seeded": True})

    async def _cancel(self, request: web.Request) -> web.Response:
        await self._record(request)
        self._authorised(request)
        call_id = request.match_info["call_id"]
        if call_id not in self.results:
            raise web.HTTPNotFound
        self._cancelled.add(call_id)
        for held in self._held.values():
            held.set()
        return web.json_response({"cancelled": True})

    async def _call(self, request: web.Request) -> web.StreamResponse:
        order = json.loads(await self._record(request))
        self._authorised(request)
        call_id = request.match_info["call_id"]
        assert request.transport is not None
        self.transports.add(request.transport)
        if call_id not in self.results:
            self.executions.append(call_id)
            self.results[call_id] = asyncio.create_task(self._execute(call_id, order))
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        command = order["arguments"].get("command", "")
        if command.startswith("hold"):
            await response.write(b'{"type":"output","offset":0,"text":"holding"}\n')
        self.began.set()
        if command == "die":
            request.transport.abort()
            return response
        result = await asyncio.shield(self.results[call_id])
        await response.write(json.dumps(result).encode() + b"\n")
        return response

    async def _execute(self, call_id: str, order: dict[str, Any]) -> dict[str, Any]:
        word, _, rest = order["arguments"].get("command", "").partition(" ")
        text = rest
        if word == "hold":
            await self._held.setdefault(rest, asyncio.Event()).wait()
            text = f"held {rest}"
        outcome = "cancelled" if call_id in self._cancelled else "ok"
        return {
            "type": "result",
            "outcome": outcome,
            "text": text,
            "total_bytes": len(text),
            "truncated": False,
            "exit_code": 0,
            "signal": None,
            "timed_out": False,
            "duration_ms": 1,
            "killed": 0,
            "code": None,
        }


class OperatorDouble:
    """Answers each want of one run with a tool server double, like the operator or the launcher does."""

    def __init__(self, store: Store, notices: Notices, run: RunRef, secret: bytes, folder: Path) -> None:
        self._store, self._notices, self._run, self._secret, self._folder = store, notices, run, secret, folder
        self.sandboxes: list[ToolServerDouble] = []
        self.fail_with = ""
        """Set: sandboxes fail to start, for this reason."""
        self.answers_wants = True
        self._started = asyncio.Event()
        self._task = asyncio.create_task(self._serve())

    @property
    def sandbox(self) -> ToolServerDouble:
        return self.sandboxes[-1]

    async def started(self, count: int = 1) -> ToolServerDouble:
        """The sandbox, once so many were started."""
        async with asyncio.timeout(60):
            while len(self.sandboxes) < count:
                self._started.clear()
                await self._started.wait()
        return self.sandbox

    async def lose(self, reason: str = "OOMKilled") -> None:
        """The sandbox dies, and the record says so."""
        lost = self.sandbox
        await lost.stop()
        await sandbox_events.mark_lost(
            self._store, self._run, 1, lost.name, reason, "the sandbox ran out of memory", now=utc_now()
        )

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        for sandbox in self.sandboxes:
            await sandbox.stop()

    async def _serve(self) -> None:
        async with self._notices.watch(self._run) as watch:
            while True:
                state = await EventLog(self._store, self._run).state()
                if state.want and self.answers_wants:
                    await self._answer(state.epoch)
                await watch.wait(0.5)

    async def _answer(self, epoch: int) -> None:
        record = await sandbox_events.read(self._store, self._run)
        name = sandbox_name(self._run.uid, record.generation)
        if self.fail_with:
            await sandbox_events.mark_lost(
                self._store, self._run, epoch, name, self.fail_with, "no room", now=utc_now(), state="Failed"
            )
            return
        double = ToolServerDouble(self._folder, name, sandbox_key(self._secret, name))
        await double.start()
        self.sandboxes.append(double)
        ready = SandboxRecord(name, "Ready", double.address, "local", "", "", record.generation)
        await sandbox_events.mark_ready(self._store, self._run, epoch, ready, ms=5, start="cold", now=utc_now())
        self._started.set()


@dataclass
class Answer:
    """An HTTP answer, body read."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.body, self.body
        return self.body["result"]  # type: ignore[no-any-return]

    @property
    def text(self) -> str:
        return self.result["content"][0]["text"]  # type: ignore[no-any-return]

    @property
    def outcome(self) -> str:
        return self.result["_meta"]["towline.dev/outcome"]  # type: ignore[no-any-return]

    @property
    def reason(self) -> str:
        assert "error" in self.body, self.body
        return self.body["error"]["data"]["reason"]  # type: ignore[no-any-return]


class QuietServer(uvicorn.Server):
    """uvicorn beside a test: the signals stay pytest's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Gateway:
    """A whole gateway on a real socket, in the test's own process."""

    def __init__(self, store: Store, identity_key: bytes, secret: bytes) -> None:
        self._store, self._identity, self._secret = store, LocalIdentity(identity_key), secret
        self._listener = listening_socket("tcp:127.0.0.1:0")
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._server: QuietServer | None = None
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        await self._task

    async def _serve(self) -> None:
        async with served(self._store, self._identity, self._secret, []) as front:
            config = uvicorn.Config(
                front, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
            )
            self._server = QuietServer(config)
            await self._server.serve(sockets=[self._listener])


@dataclass
class GatewayProcess:
    """`python -m towline.gateway`, as an operator would start it."""

    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def stop(self) -> None:
        if self.process.returncode is None:
            await self.kill()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            return await self.process.wait()


@dataclass
class World:
    """One run, its store and sandboxes, and as many gateways as a test wants."""

    store: Store
    notices: Notices
    folder: Path
    redis_url: str
    secret: bytes
    identity_key: bytes
    http: aiohttp.ClientSession
    run: RunRef
    operator: OperatorDouble
    gateways: list[Gateway | GatewayProcess] = field(default_factory=list)

    def token(self, run: RunRef | None = None, *, epoch: int = 1, seconds: float = 600) -> str:
        run = run or self.run
        return mint(
            self.identity_key,
            namespace=run.namespace,
            uid=run.uid,
            epoch=epoch,
            now=utc_now(),
            lifetime=timedelta(seconds=seconds),
        )

    async def new_run(self, **changes: Any) -> RunRef:
        run = RunRef("test", secrets.token_hex(16), "r")
        values: dict[str, Any] = {
            "policy": Policy(default="Allow"),
            "tools": TOOLS,
            "sandbox": Sandbox(start_timeout_seconds=10),
            **changes,
        }
        snapshot = Snapshot(
            namespace=run.namespace,
            name=run.name,
            uid=run.uid,
            prompt="go",
            model=Model(api="Scripted", provider="scripted", name="scripted"),
            **values,
        )
        await run_events.create(self.store, run, snapshot.to_json(), now=utc_now())
        return run

    async def gateway(self, store: Store | None = None) -> Gateway:
        started = Gateway(store or self.store, self.identity_key, self.secret)
        self.gateways.append(started)
        return started

    async def gateway_process(self, failpoint: str = "") -> GatewayProcess:
        (self.folder / "secret").write_bytes(self.secret)
        (self.folder / "identity").write_bytes(self.identity_key)
        listener = socket.create_server(("127.0.0.1", 0))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "towline.gateway",
            env={
                "TOWLINE_REDIS_URL": self.redis_url,
                "TOWLINE_LISTEN": f"fd:{listener.fileno()}",
                "TOWLINE_INSTALLATION_SECRET_FILE": str(self.folder / "secret"),
                "TOWLINE_IDENTITY_KEY_FILE": str(self.folder / "identity"),
                "PYTHONPATH": ":".join(sys.path),
                **({"TOWLINE_FAILPOINT": failpoint} if failpoint else {}),
            },
            pass_fds=[listener.fileno()],
            preexec_fn=die_with_the_test,
        )
        port = listener.getsockname()[1]
        listener.close()
        started = GatewayProcess(process, port)
        self.gateways.append(started)
        async with asyncio.timeout(60), self.http.get(f"http://127.0.0.1:{port}/readyz") as response:
            assert response.status == 200, await response.text()
        return started

    async def call(
        self,
        gateway: "Gateway | GatewayProcess",
        tool: str = "exec",
        arguments: dict[str, Any] | None = None,
        *,
        call_id: str | None = None,
        token: str | None = None,
        meta: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One `tools/call` of the present generation."""
        whole = {PROTOCOL_VERSION_META_KEY: VERSION, CLIENT_CAPABILITIES_META_KEY: {}, **(meta or {})}
        if call_id is not None:
            whole[CALL_ID_META] = call_id
        params = {"name": tool, "arguments": arguments or {}, "_meta": whole}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        sent = {"Mcp-Method": "tools/call", "Mcp-Name": tool, **(headers or {})}
        return await self.post(gateway, json.dumps(body).encode(), token=token, headers=sent)

    async def post(
        self,
        gateway: "Gateway | GatewayProcess",
        body: bytes,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Authorization": f"Bearer {self.token() if token is None else token}",
            **(headers or {}),
        }
        async with self.http.post(gateway.url, data=io.BytesIO(body), headers=sent) as response:
            raw = await response.text()
            if response.content_type == "text/event-stream":
                raw = next(line[6:] for line in raw.splitlines() if line.startswith("data: {"))
            return Answer(
                response.status, {k.lower(): v for k, v in response.headers.items()}, json.loads(raw) if raw else {}
            )

    async def events(self, *types: str, run: RunRef | None = None) -> list[Event]:
        """The run's events of these types, or all."""
        return [each for each in await EventLog(self.store, run or self.run).all() if not types or each.type in types]

    async def results(self) -> list[dict[str, Any]]:
        return [each.payload for each in await self.events("agent.tool_result")]


WorldOf = Callable[..., Awaitable[World]]


@pytest.fixture
async def world_of(valkey_url: str, tmp_path: Path) -> AsyncIterator[WorldOf]:
    """Makes the world with one run; the changes are fields of its snapshot."""
    store = Store.connect(valkey_url, patience_seconds=2)
    notices = Notices(store)
    secret, identity_key = secrets.token_hex(32).encode(), secrets.token_hex(32).encode()
    made: list[World] = []
    async with aiohttp.ClientSession() as http:

        async def world(**changes: Any) -> World:
            unbound = World(
                *(store, notices, tmp_path, valkey_url, secret, identity_key, http),
                RunRef("", ""),
                None,  # type: ignore[arg-type]
            )
            unbound.run = await unbound.new_run(**changes)
            unbound.operator = OperatorDouble(store, notices, unbound.run, secret, tmp_path)
            made.append(unbound)
            return unbound

        yield world
        for each in made:
            for gateway in each.gateways:
                await gateway.stop()
            await each.operator.stop()
    await notices.aclose()
    await store.aclose()


@pytest.fixture
async def world(world_of: WorldOf) -> World:
    """A run that may use every tool."""
    return await world_of()


@pytest.fixture
def deny_exec() -> Policy:
    return Policy(default="Allow", rules=(Rule(tool="exec", action="Deny"),))
