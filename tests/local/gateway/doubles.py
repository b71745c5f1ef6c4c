"""Stand-ins for what a gateway meets: a small real tool server that a test can steer, and whoever makes sandboxes."""

import asyncio
import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

from aiohttp import web

from towline.clock import utc_now
from towline.events import sandbox as sandbox_events
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.events.notices import Notices
from towline.events.sandbox import SandboxRecord
from towline.events.store import Store
from towline.naming import sandbox_key, sandbox_name


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
        self.fresh = True
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
        return web.json_response({**said, "seeded": bool(self.seeded), "fresh": self.fresh})

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
        self.keeps_workspace = False
        """Set: the next sandboxes find the workspace of the one before."""
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
        if self.keeps_workspace:
            double.fresh, double.seeded = False, self.sandbox.seeded
        await double.start()
        self.sandboxes.append(double)
        ready = SandboxRecord(name, "Ready", double.address, "local", "", "", record.generation)
        await sandbox_events.mark_ready(self._store, self._run, epoch, ready, ms=5, start="cold", now=utc_now())
        self._started.set()
