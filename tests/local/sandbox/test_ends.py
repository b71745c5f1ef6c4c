"""A sandbox on this machine leaves nothing behind, whoever dies first and whenever."""

import asyncio
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local.sandbox.inside import NewRequest, alive, children, sandbox, until
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle


async def test_destroy_leaves_no_process_and_no_socket(
    provider: LocalSandbox, new_request: NewRequest, tmp_path: Path
) -> None:
    request = new_request()
    async with sandbox(provider, request) as inside:
        running = asyncio.create_task(inside("setsid sleep 600 & sleep 601"))
        first = provider.first_process(request.name)
        outer = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        await until(lambda: len(children(first)) > 0)
        pids = [outer, first, *children(first)]
        await provider.destroy(request.name)
        await asyncio.gather(running, return_exceptions=True)
    assert not any(alive(pid) for pid in pids)
    assert list((tmp_path / "r").glob("*.sock")) == []


MAKER = """
import asyncio, pathlib, sys
from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle
from towline.sandbox.provider import SandboxRequest
async def main():
    provider = LocalSandbox(Bundle(pathlib.Path(sys.argv[1]), sys.argv[2]), pathlib.Path(sys.argv[3]))
    await provider.preflight()
    print("creating", flush=True)
    await provider.create(SandboxRequest(name=sys.argv[4], key="ab" * 32))
    print(provider.first_process(sys.argv[4]), flush=True)
    await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


@pytest.fixture
def orphans() -> Iterator[Callable[[], list[int]]]:
    """What is left of processes that this test has started; orphans come to us meanwhile."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_child_subreaper, 1, 0, 0, 0)
    before = set(children(os.getpid()))

    def left() -> list[int]:
        found = [pid for pid in children(os.getpid()) if pid not in before]
        for pid in found:
            if not alive(pid):
                os.waitpid(pid, os.WNOHANG)
        return [pid for pid in found if alive(pid)]

    yield left
    prctl(set_child_subreaper, 0, 0, 0, 0)


async def test_a_sandbox_dies_with_the_process_that_made_it(bundle: Bundle, tmp_path: Path) -> None:
    arguments = (bundle.folder, bundle.loader, tmp_path / "r", "s")
    maker = await asyncio.create_subprocess_exec(sys.executable, "-c", MAKER, *arguments, stdout=subprocess.PIPE)
    assert maker.stdout is not None
    async with asyncio.timeout(60):
        await maker.stdout.readline()
        first = int(await maker.stdout.readline())
    assert alive(first)
    maker.kill()
    await maker.wait()
    await until(lambda: not alive(first))


async def test_nothing_is_left_by_a_process_that_dies_while_it_makes_a_sandbox(
    bundle: Bundle, tmp_path: Path, orphans: Callable[[], list[int]]
) -> None:
    for milliseconds in range(0, 24, 2):
        arguments = (bundle.folder, bundle.loader, tmp_path / "r", f"s{milliseconds}")
        maker = await asyncio.create_subprocess_exec(sys.executable, "-c", MAKER, *arguments, stdout=subprocess.PIPE)
        assert maker.stdout is not None
        async with asyncio.timeout(60):
            await maker.stdout.readline()
        await asyncio.sleep(milliseconds / 1000)  # the moment is the point, not a wait for something
        maker.kill()
        await maker.wait()
    await until(lambda: orphans() == [])


async def test_nothing_is_left_by_a_creation_that_is_cancelled_at_any_moment(
    provider: LocalSandbox, new_request: NewRequest, orphans: Callable[[], list[int]]
) -> None:
    await provider.preflight()
    for milliseconds in range(0, 24, 2):
        creating = asyncio.create_task(provider.create(new_request()))
        await asyncio.sleep(milliseconds / 1000)  # the moment is the point, not a wait for something
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    await provider.aclose()
    await until(lambda: orphans() == [])
