"""The tool server, started directly under this interpreter; the isolation is tested in tests/local/sandbox."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.local.toolserver.running import Running, running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "v") as server:
        yield server
