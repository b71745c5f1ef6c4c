"""Real sandboxes by bubblewrap; the interpreter bundle is built once for the session."""

import itertools
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from towline.sandbox.bubblewrap import LocalSandbox
from towline.sandbox.bundle import Bundle, build_bundle
from towline.sandbox.provider import SandboxRequest


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
async def provider(bundle: Bundle, tmp_path: Path) -> AsyncIterator[LocalSandbox]:
    provider = LocalSandbox(bundle, tmp_path / "r")
    yield provider
    await provider.aclose()
    assert list((tmp_path / "r").glob("*.sock")) == [], "a socket was left"


@pytest.fixture
def new_request(tmp_path: Path) -> Callable[[], SandboxRequest]:
    numbers = itertools.count(1)

    def new() -> SandboxRequest:
        name = f"s{next(numbers)}"
        return SandboxRequest(name=name, key=secrets.token_hex(32), volume=tmp_path / f"volume-{name}")

    return new
