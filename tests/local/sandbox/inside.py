"""A shell in a sandbox, and what can be seen of its processes from outside."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.guest import Guest
from towline.sandbox.provider import SandboxRequest

NewRequest = Callable[[], SandboxRequest]


class Inside:
    """A shell in a sandbox."""

    def __init__(self, guest: Guest, request: SandboxRequest) -> None:
        self.guest, self.request = guest, request
        self._count = 0

    async def __call__(self, command: str) -> str:
        self._count += 1
        result = await self.guest.call(f"c{self._count}", "exec", command=f"exec 2>&1; {command}")
        return str(result["text"])


@asynccontextmanager
async def sandbox(provider: LocalSandbox, request: SandboxRequest) -> AsyncIterator[Inside]:
    handle = await provider.create(request)
    async with Guest(handle.endpoint, request.key) as guest:
        yield Inside(guest, request)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what only polling can see: other processes."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
