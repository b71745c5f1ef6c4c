"""The bubblewrap provider keeps the contract of every provider."""

import os
import signal
from collections.abc import Callable

import pytest

from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.conformance import CHECKS, Bench, Check
from towline.sandbox.provider import SandboxRequest


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_bubblewrap_provider_conforms(
    check: Check, provider: LocalSandbox, new_request: Callable[[], SandboxRequest]
) -> None:
    async def kill(name: str) -> None:
        os.kill(provider.first_process(name), signal.SIGKILL)

    await check(Bench(provider, new_request, kill))
