"""Each call id runs once, its result is kept until acknowledged, and nothing is kept without bound."""

import asyncio
import json

import pytest

from towline.toolserver.calls import KEPT_LIMIT, RUNNING_LIMIT, Call, Calls, fingerprint
from towline.toolserver.protocol import Refused
from towline.toolserver.result import Result, ToolFault

PRINT = fingerprint("exec", {"command": "true"})


class Counted:
    """Work that counts how often it ran, and ends when told."""

    def __init__(self, result: Result | Exception | None = None, *, held: bool = False) -> None:
        self.ran = 0
        self._result = result or Result("ok", "done", 4)
        self.release = asyncio.Event()
        if not held:
            self.release.set()

    async def __call__(self, call: Call) -> Result:
        self.ran += 1
        await self.release.wait()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


async def finished(call: Call) -> dict[str, object]:
    async with asyncio.timeout(5):
        while call.line is None:
            await call.changed()
    return json.loads(call.line)  # type: ignore[no-any-return]


async def test_the_same_id_attaches_while_running_and_after() -> None:
    calls, work = Calls(), Counted(held=True)
    first = calls.begin("a", PRINT, work, streams=False)
    assert calls.begin("a", PRINT, work, streams=False) is first
    work.release.set()
    await finished(first)
    assert calls.begin("a", PRINT, work, streams=False) is first
    assert work.ran == 1


async def test_another_body_under_a_known_id_is_a_conflict() -> None:
    calls, work = Calls(), Counted()
    call = calls.begin("a", PRINT, work, streams=False)
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            calls.begin("a", fingerprint("exec", {"command": "false"}), work, streams=False)
        assert caught.value.status == 409
        await finished(call)


def test_the_order_of_keys_makes_no_other_body() -> None:
    assert fingerprint("t", {"a": 1, "b": 2}) == fingerprint("t", {"b": 2, "a": 1})
    assert fingerprint("t", {"a": 1}) != fingerprint("u", {"a": 1})


async def test_an_acknowledged_result_is_dropped_and_its_call_not_run_again() -> None:
    calls, work = Calls(), Counted()
    await finished(calls.begin("a", PRINT, work, streams=False))
    calls.acknowledge(["unknown", "a"])
    again = await finished(calls.begin("a", PRINT, work, streams=False))
    assert again["code"] == "ResultDropped"
    assert work.ran == 1


async def test_a_running_call_cannot_be_acknowledged_away() -> None:
    calls, work = Calls(), Counted(held=True)
    call = calls.begin("a", PRINT, work, streams=False)
    calls.acknowledge(["a"])
    assert calls.begin("a", PRINT, work, streams=False) is call
    work.release.set()
    await finished(call)


async def test_too_many_at_once_are_refused_and_admitted_later() -> None:
    calls, work = Calls(), Counted(held=True)
    running = [calls.begin(f"a{n}", PRINT, work, streams=False) for n in range(RUNNING_LIMIT)]
    with pytest.raises(Refused) as caught:
        calls.begin("more", PRINT, work, streams=False)
    assert caught.value.status == 429
    work.release.set()
    await asyncio.gather(*map(finished, running))
    await finished(calls.begin("more", PRINT, work, streams=False))


async def test_a_result_that_was_pushed_out_is_reported_and_not_run_again() -> None:
    calls, work = Calls(), Counted()
    for n in range(KEPT_LIMIT + 1):
        await finished(calls.begin(f"a{n}", PRINT, work, streams=False))
    ran = work.ran
    again = await finished(calls.begin("a0", PRINT, work, streams=False))
    assert (again["outcome"], again["code"]) == ("error", "ResultDropped")
    assert (await finished(calls.begin("a1", PRINT, work, streams=False)))["outcome"] == "ok"
    assert work.ran == ran


async def test_large_results_are_bounded_by_their_bytes() -> None:
    calls, work = Calls(), Counted(Result("ok", "x" * 40_000, 40_000))
    for n in range(200):
        await finished(calls.begin(f"a{n}", PRINT, work, streams=False))
    assert calls._finished_bytes <= 4 * 1024 * 1024
    assert len(calls._finished) < 200


async def test_cancel_is_told_to_the_work() -> None:
    calls = Calls()

    async def until_cancelled(call: Call) -> Result:
        await call.cancelled
        return Result("cancelled", "", 0)

    call = calls.begin("a", PRINT, until_cancelled, streams=False)
    assert calls.cancel("a")
    assert calls.cancel("a")
    assert (await finished(call))["outcome"] == "cancelled"
    assert not calls.cancel("a")


async def test_a_call_that_is_overtaken_by_its_cancellation_never_runs() -> None:
    calls, work = Calls(), Counted()
    assert calls.cancel("a")

    late = await finished(calls.begin("a", PRINT, work, streams=False))

    assert (late["outcome"], work.ran) == ("cancelled", 0)
    assert (await finished(calls.begin("b", PRINT, work, streams=False)))["outcome"] == "ok"


async def test_a_failing_tool_still_gives_one_result(capsys: pytest.CaptureFixture[str]) -> None:
    calls = Calls()
    fault = await finished(calls.begin("a", PRINT, Counted(ToolFault("NoShell", "no shell")), streams=False))
    assert (fault["outcome"], fault["code"], fault["text"]) == ("error", "NoShell", "no shell")
    broken = await finished(calls.begin("b", PRINT, Counted(RuntimeError("secret")), streams=False))
    assert (broken["outcome"], broken["code"]) == ("error", "Internal")
    assert "secret" not in str(broken["text"])
    assert "RuntimeError: secret" in capsys.readouterr().err


async def test_watchers_hear_of_output_and_of_the_end() -> None:
    calls = Calls()
    printed = asyncio.Event()

    async def talk(call: Call) -> Result:
        call.output(b"one ")
        call.output(b"two")
        printed.set()
        await call.cancelled
        return Result("ok", "one two", 7)

    call = calls.begin("a", PRINT, talk, streams=True)
    async with asyncio.timeout(5):
        await printed.wait()
        while not call.live_text:
            await call.changed()
    assert call.live_text == "one two"
    calls.cancel("a")
    assert (await finished(call))["text"] == "one two"
