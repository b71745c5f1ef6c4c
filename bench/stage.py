"""The real processes that figures are taken from: event store, gateway, tool servers, and runs with their credentials.

Every subject opens one of its own, so that none measures what another left behind. It starts things as the local
launcher does, with the launcher's own functions, and leaving it ends them all.
"""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp

from towline.api.snapshot import Model, Policy, Snapshot
from towline.clock import utc_now
from towline.events import runs
from towline.events import sandbox as sandbox_record
from towline.events.event import RunRef
from towline.events.store import Store
from towline.gateway.local_identity import mint
from towline.local.commands import Files, gateway_environment, harness_environment
from towline.local.processes import Child, python_module, start
from towline.local.runtime import write_secret
from towline.local.store import OwnedStore, owned
from towline.naming import sandbox_key, sandbox_name
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle, build_bundle
from towline.sandbox.guest import Guest
from towline.sandbox.provider import SandboxRequest
from towline.settings import LocalSettings, read

TOOLS = ("exec", "read_file", "write_file", "edit_file", "list_dir", "search")
SCRIPTED = Model(api="Scripted", provider="scripted", name="scripted")
STOP_SECONDS = 5.0
READY_SECONDS = 30.0
BACKLOG = 64


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A tool server that answers. `process` is absent when it runs inside bubblewrap."""

    name: str
    endpoint: str
    key: str
    volume: Path
    process: Child | None = None


@dataclass(slots=True)
class Stage:
    """One event store and what was started beside it."""

    held: OwnedStore
    files: Files
    closing: AsyncExitStack
    gateway: Child | None = None
    gateway_url: str = ""

    @property
    def store(self) -> Store:
        return self.held.store

    @property
    def url(self) -> str:
        return self.held.url

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str], descriptors: tuple[int, ...] = ()
    ) -> Child:
        """A process that lives no longer than the stage; its output goes to a log."""
        log = self.held.runtime / f"{name}.log"
        child = start(name, command, environment=environment, log=log, folder=self.held.runtime, pass_fds=descriptors)
        self.closing.push_async_callback(_end, child)
        return child

    async def start_gateway(self) -> Child:
        """`python -m towline.gateway`, sealed, on a socket of 127.0.0.1; returns when it serves."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.gateway_url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            environment = gateway_environment(
                redis_url=self.url,
                listener=listener.fileno(),
                secret=self.held.folder.installation_secret(),
                files=self.files,
                log_level="info",
            )
            self.gateway = self.start("gateway", python_module("towline.gateway"), environment, (listener.fileno(),))
        ready = self.gateway_url.removesuffix("/mcp") + "/readyz"
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as http, http.get(ready) as response:
            response.raise_for_status()
        return self.gateway

    async def new_run(self, model: Model = SCRIPTED, **given: Any) -> RunRef:
        """A run that may call every tool, under epoch 1; `given` are further fields of its snapshot."""
        run = RunRef("bench", secrets.token_hex(16), "bench")
        snapshot = Snapshot(
            namespace=run.namespace,
            name=run.name,
            uid=run.uid,
            prompt="Measure.",
            model=model,
            tools=TOOLS,
            policy=Policy(default="Allow"),
            **given,
        )
        await runs.create(self.store, run, snapshot.to_json(), now=utc_now())
        return run

    def token_file(self, run: RunRef, epoch: int = 1) -> Path:
        """The token with which a harness speaks for `run`, in the file that it reads for each request."""
        key = self.files.identity_key.read_bytes()
        token = mint(key, namespace=run.namespace, uid=run.uid, epoch=epoch, now=utc_now(), lifetime=timedelta(hours=1))
        return write_secret(self.held.runtime / f"token-{run.uid}", token.encode())

    def start_harness(self, run: RunRef, *, epoch: int = 1) -> Child:
        """`python -m towline.harness` for one epoch of `run`."""
        self.token_file(run, epoch).replace(self.files.gateway_token(epoch))
        environment = harness_environment(
            redis_url=self.url,
            run=run,
            epoch=epoch,
            gateway_url=self.gateway_url,
            files=self.files,
            has_model_key=False,
            trust={},
            log_level="info",
        )
        return self.start(f"harness-{run.uid}-{epoch}", python_module("towline.harness"), environment)

    # -- tool servers ------------------------------------------------------------------------------------------------

    async def bundle(self) -> Bundle:
        """The interpreter bundle, from the cache that `towline run` uses."""
        return await asyncio.to_thread(build_bundle, read(LocalSettings).cache_home.expanduser() / "towline")

    async def start_tool_server(self, run: RunRef) -> ToolServer:
        """From the bundle, on a unix socket, in no sandbox; returns when it has answered its first hello."""
        bundle = await self.bundle()
        name, key, volume = self._named(run)
        path = self.held.runtime / f"{name}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(BACKLOG)
            environment = {
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "TOWLINE_LISTEN": f"fd:{listener.fileno()}",
                "TOWLINE_SANDBOX_NAME": name,
                "TOWLINE_SANDBOX_KEY": key,
                "TOWLINE_VOLUME": str(volume),
            }
            command = bundle.command(PurePosixPath(bundle.folder))
            process = self.start(name, command, environment, (listener.fileno(),))
        endpoint = f"unix:{path}"
        async with Guest(endpoint, key):
            return ToolServer(name, endpoint, key, volume, process)

    async def start_sandbox(self, run: RunRef) -> ToolServer:
        """The same in bubblewrap, as `towline run` starts it. Raises SandboxFailed where there are no namespaces."""
        provider = LocalSandbox(await self.bundle(), self.held.runtime / "s")
        self.closing.push_async_callback(provider.aclose)
        await provider.preflight()
        name, key, volume = self._named(run)
        handle = await provider.create(SandboxRequest(name=name, key=key, volume=volume))
        return ToolServer(name, handle.endpoint, key, volume)

    async def offer(self, run: RunRef, server: ToolServer) -> None:
        """Record `server` as the run's sandbox, as the operator does: from now on the gateway forwards to it."""
        ready = sandbox_record.SandboxRecord(server.name, "Ready", server.endpoint, "local", generation=1)
        await sandbox_record.mark_ready(self.store, run, 1, ready, ms=0, start="cold", now=utc_now())

    def _named(self, run: RunRef) -> tuple[str, str, Path]:
        name = sandbox_name(run.uid, 1)
        volume = self.held.folder.volume(run.uid)
        volume.mkdir(mode=0o700, parents=True)
        return name, sandbox_key(self.held.folder.installation_secret().read_bytes(), name), volume


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """A new event store (append-only file, fsync every second, on a unix socket) that vanishes with the stage."""
    async with owned(None, verb="bench") as held, AsyncExitStack() as closing:
        files = Files(held.runtime)
        write_secret(files.identity_key, secrets.token_hex(32).encode())
        held.folder.installation_secret()
        yield Stage(held, files, closing)


async def _end(child: Child) -> None:
    await child.stop(STOP_SECONDS)
