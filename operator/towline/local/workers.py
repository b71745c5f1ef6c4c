"""The gateway and the harness of one run as processes: started, replaced, ended. It decides nothing.

Called by `supervise.py`. The gateway's listening socket is opened here and handed down, so that a gateway that died is
replaced at the same address, and no connection is refused meanwhile.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from towline.clock import utc_now
from towline.events.event import RunRef
from towline.gateway.local_identity import mint
from towline.local.commands import Files, gateway_environment, harness_environment
from towline.local.plan import HarnessSeen
from towline.local.processes import Child, python_module, start
from towline.local.runtime import write_secret
from towline.local.store import OwnedStore

EXIT_SECONDS = 2.0  # a harness that has written its terminal event has nothing left to do
TOKEN_LIFETIME = timedelta(days=400)  # longer than any deadline; its key is gone with this launcher
BACKLOG = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the processes are told beside their run."""

    has_model_key: bool
    trust: Mapping[str, str]
    """Variables that name the machine's own certificate authorities."""
    log_level: str


class Workers:
    """At most one gateway and one harness at a time."""

    def __init__(self, run: RunRef, held: OwnedStore, surroundings: Surroundings, on_exit: Callable[[], None]) -> None:
        self.gateway: Child | None = None
        self.gateway_crashes = 0
        self.harness: Child | None = None
        self._harness_epoch = 0
        self._run, self._held, self._surroundings, self._on_exit = run, held, surroundings, on_exit
        self._files = Files(held.runtime)
        self._logs = held.folder.logs(run.uid)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)

    @property
    def harness_seen(self) -> HarnessSeen | None:
        """The harness started last."""
        return HarnessSeen(epoch=self._harness_epoch, exit=self.harness.exit) if self.harness is not None else None

    @property
    def granted(self) -> int:
        """The epoch of the harness started last; 0 before the first."""
        return self._harness_epoch

    @property
    def gateway_running(self) -> bool:
        return self.gateway is not None and self.gateway.running

    def start_gateway(self) -> None:
        """Starts a gateway in the place of one that ended."""
        if self.gateway is not None:
            self.gateway_crashes += 1
        self.gateway = start(
            "gateway",
            python_module("towline.gateway"),
            environment=gateway_environment(
                redis_url=self._held.url,
                listener=self._listener.fileno(),
                secret=self._held.folder.installation_secret(),
                files=self._files,
                log_level=self._surroundings.log_level,
            ),
            log=self._logs / "gateway.log",
            folder=self._held.runtime,
            pass_fds=[self._listener.fileno()],
            on_exit=self._on_exit,
        )

    def start_harness(self, epoch: int) -> None:
        """Starts the harness of an epoch, with a token for that epoch alone."""
        token = mint(
            self._files.identity_key.read_bytes(),
            namespace=self._run.namespace,
            uid=self._run.uid,
            epoch=epoch,
            now=utc_now(),
            lifetime=TOKEN_LIFETIME,
        )
        write_secret(self._files.gateway_token(epoch), token.encode())
        self._harness_epoch = epoch
        self.harness = start(
            "harness",
            python_module("towline.harness"),
            environment=harness_environment(
                redis_url=self._held.url,
                run=self._run,
                epoch=epoch,
                gateway_url=f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp",
                files=self._files,
                has_model_key=self._surroundings.has_model_key,
                trust=self._surroundings.trust,
                log_level=self._surroundings.log_level,
            ),
            log=self._logs / f"harness-{epoch}.log",
            folder=self._held.runtime,
            on_exit=self._on_exit,
        )

    async def end_harness(self, *, kindly: bool) -> None:
        """Returns when it is gone; `kindly` gives it the time to end by itself."""
        if self.harness is None:
            return
        if kindly:
            try:
                await asyncio.wait_for(self.harness.exited.wait(), EXIT_SECONDS)
            except TimeoutError:
                pass
        self.harness.kill()
        await self.harness.exited.wait()

    async def end_gateway(self) -> None:
        """Kills it, for good: it holds nothing that the store does not hold."""
        if self.gateway is not None:
            self.gateway.kill()
            await self.gateway.exited.wait()
        self._listener.close()
