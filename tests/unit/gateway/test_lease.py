"""How long a sandbox that does not answer is waited for."""

import asyncio
from typing import Any

import pytest

from towline.errors import SandboxFailed
from towline.gateway import lease

PROVED: Any = object()


class Answers:
    """What asking brings, one after the other; the last one for ever. A number is a wait for the sandbox's record."""

    def __init__(self, *answers: Any) -> None:
        self._left = list(answers)

    async def __call__(self) -> Any:
        answer = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return await self()
        if isinstance(answer, Exception):
            raise answer
        return answer


UNREACHABLE = SandboxFailed("Unreachable", "connection refused")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "UNREACHABLE_SECONDS", 0.2)
    monkeypatch.setattr(lease, "PAUSE_SECONDS", 0.01)


async def test_patience_begins_with_the_first_attempt_however_long_the_sandbox_took_to_come_up() -> None:
    """On a busy node a pod takes longer than that to start, and then its tool server is not there yet."""
    assert await lease._patiently(Answers(0.3, UNREACHABLE, UNREACHABLE, PROVED), 60) is PROVED


async def test_one_that_never_answers_is_given_up() -> None:
    with pytest.raises(SandboxFailed, match="Unreachable"):
        await asyncio.wait_for(lease._patiently(Answers(UNREACHABLE), 60), 5)


async def test_what_is_no_matter_of_patience_is_told_at_once() -> None:
    with pytest.raises(SandboxFailed, match="OOMKilled"):
        await lease._patiently(Answers(SandboxFailed("OOMKilled", "too much memory"), PROVED), 60)
