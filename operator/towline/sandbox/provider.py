"""The Protocol of a sandbox provider, and the values that cross it.

Called by the operator's part: the launcher on a laptop, the controller in a cluster. Implemented by `bubblewrap.py`;
every adapter passes `conformance.py`. A provider knows no run, no policy and no protocol of the tool server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """What a sandbox is to be made of. Equal requests under one name mean the same sandbox."""

    name: str
    """Chosen by the caller, unique for ever: a lost sandbox is followed by another name (`naming.sandbox_name`)."""
    key: str = field(repr=False)
    """What its tool server proves itself with (`naming.sandbox_key`), hexadecimal. Visible to nothing inside."""
    volume: Path | None = None
    """Folder that outlives the sandbox and holds its workspace; the caller's to delete. None: goes with the sandbox."""
    image: str = ""
    """What the sandbox's files come from, in the provider's terms; "" means the provider's default."""
    max_processes: int = 512
    """Processes and threads that may exist in the sandbox at once."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every command, beside the few that the tool server sets."""


@dataclass(frozen=True, slots=True)
class SandboxHandle:
    """A sandbox whose tool server answers."""

    name: str
    endpoint: str
    """`unix:/path` or `http://host:port`."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a sandbox is no more. `reason` is one word (Exited, Killed, Suspended, Destroyed, OOMKilled, Evicted, …)."""

    reason: str
    message: str


class SandboxProvider(Protocol):
    """Makes and ends sandboxes. All methods may be called at once from several tasks, and for any name in any order.

    What fails raises SandboxFailed(reason, message), and leaves nothing running.
    """

    async def create(self, request: SandboxRequest) -> SandboxHandle:
        """Make the sandbox and return once its tool server answers, within the provider's own bound.

        Idempotent by name: while the sandbox lives, the same handle is returned, and a call that meets another in
        progress waits for it. A name that was suspended is resumed. A name whose sandbox died is made anew.
        Raises SandboxFailed(NameTaken) when the name is known under a request that differs.
        """

    async def endpoint(self, name: str) -> str:
        """Where the tool server of a living sandbox is dialled. Raises SandboxFailed(Unknown) if there is none."""

    async def suspend(self, name: str) -> None:
        """End its processes and keep its volume. Suspending what is suspended, or dead, is no error.

        Raises SandboxFailed(Unknown) for a name that was never created, or destroyed.
        """

    async def resume(self, name: str) -> SandboxHandle:
        """Start a suspended sandbox again on its volume: a new tool server, with a new instance.

        A living one is returned as it is. Raises SandboxFailed(Unknown) like `suspend`.
        """

    async def destroy(self, name: str) -> None:
        """End it and forget it; afterwards no process, no address and no volume of its own is left.

        An unknown name is fine, as is a second call.
        """

    async def wait_lost(self, name: str) -> Loss:
        """Wait, without a bound, until the sandbox is no more, for whatever reason, and say why.

        Returns at once for a name that is not alive. Cancelling the wait has no effect on the sandbox.
        """
