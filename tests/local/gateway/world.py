"""A run in a real store with real gateways, in the test's process or of their own, and calls to them."""

import asyncio
import contextlib
import io
import json
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

from tests.local.gateway.doubles import OperatorDouble
from tests.processes import die_with_the_test
from towline.api.snapshot import Model, Policy, Sandbox, Snapshot
from towline.clock import utc_now
from towline.events import runs as run_events
from towline.events.event import Event, RunRef
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.store import Store
from towline.gateway.app import served
from towline.gateway.listening import BoundedProtocol, listening_socket
from towline.gateway.local_identity import LocalIdentity, mint
from towline.naming import CALL_ID_META

VERSION = "2026-07-28"
TOOLS = ("exec", "read_file", "write_file", "edit_file", "list_dir", "search")


def snapshot_of(run: RunRef, **changes: Any) -> Snapshot:
    """What the operator records of a run whose six tools are all allowed."""
    values: dict[str, Any] = {
        "prompt": "go",
        "model": Model(api="Scripted", provider="scripted", name="scripted"),
        "policy": Policy(default="Allow"),
        "tools": TOOLS,
        "sandbox": Sandbox(start_timeout_seconds=10),
        **changes,
    }
    return Snapshot(namespace=run.namespace, name=run.name, uid=run.uid, **values)


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
        await run_events.create(self.store, run, snapshot_of(run, **changes).to_json(), now=utc_now())
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
