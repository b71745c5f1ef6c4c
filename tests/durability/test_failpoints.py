"""A sealed process dies at its failpoint as by `kill -9`, at the hit that was asked for."""

import asyncio
import os
import signal

from tests.local.harness.conftest import harness_run, scripted

HELLO = {"text": "Hello."}


async def test_a_sealed_harness_is_gone_at_the_hit_it_was_told(valkey_url, tmp_path):
    async with harness_run(valkey_url, tmp_path) as run:
        await run.create(scripted(HELLO))

        code, _ = await run.work(TOWLINE_FAILPOINT="harness.append.before:3")

        assert code == -signal.SIGKILL
        assert await run.types() == ["run.started", "harness.started", "harness.sealed", "turn.started", "user.message"]
        assert (await run.work(epoch=2))[0] == 0
        assert (await run.types())[-1] == "run.completed"


async def test_a_point_that_is_not_reached_changes_nothing(valkey_url, tmp_path):
    async with harness_run(valkey_url, tmp_path) as run:
        await run.create(scripted(HELLO))

        assert (await run.work(TOWLINE_FAILPOINT="harness.append.before:99"))[0] == 0


async def test_a_process_that_is_to_stop_goes_on_when_it_is_woken(valkey_url, tmp_path):
    async with harness_run(valkey_url, tmp_path) as run:
        await run.create(scripted(HELLO))
        process = await run.start(TOWLINE_FAILPOINT="harness.answer.before:1:stop")

        ended, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
        assert (ended, os.WIFSTOPPED(status)) == (process.pid, True)
        assert (await run.types())[-1] == "agent.message_start"
        process.send_signal(signal.SIGCONT)

        assert (await run.end(process))[0] == 0
