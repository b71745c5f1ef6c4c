"""A call outlives its request, its gateway and its harness; it ends with its sandbox, and says so."""

import asyncio
import json
import signal

import aiohttp
import pytest

from towline.api.snapshot import Sandbox, Volume
from towline.clock import utc_now
from towline.events import calls as ledger
from towline.events import live
from towline.events import runs as run_events
from towline.events import sandbox as sandbox_events
from towline.gateway.result import RESET_NOTE


async def begun(world, gateway, call_id="tc_1", command="hold a"):
    """The task of a call that the sandbox has begun to execute."""
    call = asyncio.create_task(world.call(gateway, "exec", {"command": command}, call_id=call_id))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    return call, sandbox


async def vanished(call):
    """The caller is gone: its connection is closed in mid-call."""
    call.cancel()
    await asyncio.wait([call])


async def test_a_caller_that_vanishes_and_comes_back_gets_the_result_of_the_one_execution(world):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)
    await vanished(call)

    again = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox.release("a")

    assert (await again).text == "held a"
    assert sandbox.executions == ["tc_1"]
    assert len(await world.results()) == 1


async def test_a_call_whose_caller_never_comes_back_is_recorded_all_the_same(world):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)
    await vanished(call)

    async with world.notices.watch(world.run) as watch:
        sandbox.release("a")
        async with asyncio.timeout(60):
            while not (results := await world.results()):
                await watch.wait(1)

    assert [each["content"][0]["text"] for each in results] == ["held a"]


async def test_an_older_generations_client_that_hangs_up_cancels_nothing(world):
    gateway = await world.gateway()
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "exec", "arguments": {"command": "hold a"}, "_meta": {"towline.dev/call-id": "tc_1"}}}  # fmt: skip
    headers = {"MCP-Protocol-Version": "2025-11-25"}
    call = asyncio.create_task(world.post(gateway, json.dumps(body).encode(), headers=headers))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    await vanished(call)

    again = asyncio.create_task(world.post(gateway, json.dumps(body).encode(), headers=headers))
    sandbox.release("a")

    assert (await again).text == "held a"
    assert sandbox.executions == ["tc_1"]


async def test_the_same_call_at_two_gateways_runs_once_and_both_get_the_result(world):
    one, two = await world.gateway(), await world.gateway()
    first, sandbox = await begun(world, one)
    second = asyncio.create_task(world.call(two, "exec", {"command": "hold a"}, call_id="tc_1"))

    sandbox.release("a")

    assert (await first).result == (await second).result
    assert sandbox.executions == ["tc_1"]
    assert len(await world.results()) == 1


async def test_the_same_calls_at_two_gateways_at_the_same_moment_run_once_each(world):
    one, two = await world.gateway(), await world.gateway()

    answers = await asyncio.gather(
        *(
            world.call(gateway, "exec", {"command": f"echo {n}"}, call_id=f"tc_{n}")
            for n in range(8)
            for gateway in (one, two)
        )
    )

    assert [answer.text for answer in answers] == [str(n) for n in range(8) for _ in range(2)]
    assert sorted(world.operator.sandbox.executions) == [f"tc_{n}" for n in range(8)]
    assert len(await world.results()) == 8


async def test_a_gateway_killed_in_mid_call_is_replaced_without_a_second_execution(world):
    killed = await world.gateway_process()
    call, sandbox = await begun(world, killed)
    await killed.kill()
    with pytest.raises(aiohttp.ClientError):
        await call
    replacement = await world.gateway()

    again = asyncio.create_task(world.call(replacement, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox.release("a")

    assert (await again).text == "held a"
    assert sandbox.executions == ["tc_1"]
    assert len(await world.results()) == 1


async def test_a_call_claimed_by_a_gateway_that_died_before_dispatch_is_executed_by_the_next(world):
    world.operator.answers_wants = False
    killed = await world.gateway_process()
    call = asyncio.create_task(world.call(killed, "exec", {"command": "echo 1"}, call_id="tc_1"))
    async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
        while not await world.events("sandbox.requested"):
            await watch.wait(1)
    await killed.kill()
    with pytest.raises(aiohttp.ClientError):
        await call
    world.operator.answers_wants = True

    answer = await world.call(await world.gateway(), "exec", {"command": "echo 1"}, call_id="tc_1")

    assert answer.text == "1"
    assert world.operator.sandbox.executions == ["tc_1"]


async def test_a_gateway_that_is_told_to_stop_answers_what_ends_in_time_and_exits_cleanly(world):
    gateway = await world.gateway_process()
    call, sandbox = await begun(world, gateway)

    stopping = asyncio.create_task(gateway.terminate())
    sandbox.release("a")

    assert (await call).text == "held a"
    assert await stopping == 0


async def test_a_gateway_that_stops_before_a_call_ends_leaves_it_to_the_next(world):
    stopped, next_one = await world.gateway(), await world.gateway()
    call, sandbox = await begun(world, stopped)

    await stopped.stop()
    await asyncio.wait([call], timeout=10)
    again = asyncio.create_task(world.call(next_one, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox.release("a")

    assert (await again).text == "held a"
    assert call.exception() is not None
    assert sandbox.executions == ["tc_1"]
    assert [each["outcome"] for each in await world.results()] == ["ok"]


async def test_a_sandbox_that_dies_in_mid_call_makes_its_outcome_unknown(world):
    gateway = await world.gateway()
    call, _ = await begun(world, gateway)

    await world.operator.lose("OOMKilled")

    answer = await call
    assert answer.outcome == "unknown"
    assert "ran out of memory (OOMKilled)" in answer.text
    assert "may or may not have taken effect" in answer.text
    assert [each["outcome"] for each in await world.results()] == ["unknown"]


async def test_the_model_is_told_whether_the_workspace_outlived_its_sandbox(world_of):
    kept = Sandbox(start_timeout_seconds=10, retain="Suspend", volume=Volume(size_bytes=1))
    for sandbox, told in ((kept, "the workspace is kept"), (Sandbox(start_timeout_seconds=10), "may have been reset")):
        world = await world_of(sandbox=sandbox)
        call, _ = await begun(world, await world.gateway())

        await world.operator.lose()

        assert told in (await call).text


async def test_a_sandbox_that_is_lost_without_a_sign_ends_its_calls_by_the_record(world):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)

    await sandbox_events.mark_lost(
        world.store, world.run, 1, sandbox.name, "NodeLost", "the node is gone", now=utc_now()
    )

    assert (await call).outcome == "unknown"


async def test_after_a_lost_sandbox_the_next_call_gets_a_new_one_and_the_model_is_told(world):
    gateway = await world.gateway()
    call, _ = await begun(world, gateway)
    await world.operator.lose()
    await call

    second = await world.call(gateway, "exec", {"command": "echo 2"}, call_id="tc_2")
    third = await world.call(gateway, "exec", {"command": "echo 3"}, call_id="tc_3")

    assert second.text == f"{RESET_NOTE}\n2"
    assert third.text == "3"
    assert len(world.operator.sandboxes) == 2


async def test_another_gateway_does_not_tell_again_of_a_new_sandbox(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.lease.TRUSTED_SECONDS", 0.0)
    one, other = await world.gateway(), await world.gateway()
    await world.call(one, "exec", {"command": "echo 1"})
    await world.operator.lose()
    assert RESET_NOTE in (await world.call(one, "exec", {"command": "echo 2"})).text

    assert (await world.call(other, "exec", {"command": "echo 3"})).text == "3"


async def test_the_gateway_that_stands_in_tells_of_a_new_sandbox_that_it_did_not_prepare(world):
    gateway, killed = await world.gateway(), await world.gateway_process("gateway.dispatch.after:1")
    await world.call(gateway, "exec", {"command": "echo 1"})
    await world.operator.lose()
    with pytest.raises(aiohttp.ClientError):
        await world.call(killed, "exec", {"command": "echo 2"}, call_id="tc_2")

    answer = await world.call(gateway, "exec", {"command": "echo 2"}, call_id="tc_2")

    assert len(world.operator.sandbox.seeded) == 1, "by the one that was killed"
    assert answer.text == f"{RESET_NOTE}\n2"


async def test_a_result_that_the_store_did_not_take_has_told_nobody_of_the_new_sandbox(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.lease.TRUSTED_SECONDS", 0.0)
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"})
    await world.operator.lose()
    call = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_2"))
    sandbox = await world.operator.started(2)
    await asyncio.wait_for(sandbox.began.wait(), 60)
    await world.store.client.delete(world.run.keys.calls)
    sandbox.release("a")
    assert (await call).reason == "StoreLost"

    again = await world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_2")

    assert again.text == f"{RESET_NOTE}\nheld a"


async def test_a_workspace_that_was_kept_is_not_called_a_new_one(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.lease.TRUSTED_SECONDS", 0.0)
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"})
    await world.operator.lose()
    world.operator.keeps_workspace = True

    assert (await world.call(gateway, "exec", {"command": "echo 2"})).text == "2"


async def test_a_sandbox_that_died_while_idle_costs_no_call(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.lease.TRUSTED_SECONDS", 0.0)
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"})
    await world.operator.sandbox.stop()

    call = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 2"}))
    await asyncio.wait([call], timeout=0.3)  # the gateway finds nobody there before the operator knows
    await world.operator.lose()

    answer = await call
    assert answer.outcome == "ok"
    assert answer.text.endswith("2")


async def test_a_dispatched_call_is_never_given_to_another_sandbox(world):
    killed = await world.gateway_process()
    call, _ = await begun(world, killed)
    await killed.kill()
    with pytest.raises(aiohttp.ClientError):
        await call
    await world.operator.lose()

    answer = await world.call(await world.gateway(), "exec", {"command": "hold a"}, call_id="tc_1")

    assert answer.outcome == "unknown"
    assert len(world.operator.sandboxes) == 1


async def test_a_tool_server_that_was_restarted_does_not_get_the_call_again(world, monkeypatch):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)
    await sandbox.stop()
    sandbox.instance = "f" * 32
    await sandbox.start()

    answer = await call

    assert answer.outcome == "unknown"
    assert "(Restarted)" in answer.text
    assert sandbox.executions == ["tc_1"]


async def test_a_dropped_connection_is_taken_up_again_at_the_same_tool_server(world):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)
    for transport in list(sandbox.transports):
        transport.abort()

    sandbox.release("a")

    assert (await call).text == "held a"
    assert sandbox.executions == ["tc_1"]


async def test_a_tool_server_that_drops_every_connection_ends_as_unknown(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.forward.PAUSES_SECONDS", (0.01, 0.01))
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "die"})

    assert answer.outcome == "unknown"
    assert "(Unreachable)" in answer.text


async def test_cancelling_the_run_kills_the_command_and_records_it_as_cancelled(world):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)

    await run_events.request_cancel(world.store, world.run, "enough")

    answer = await call
    assert answer.outcome == "cancelled"
    assert ("DELETE", "/v1/calls/tc_1") in [(method, path) for method, path, _, _ in sandbox.requests]
    assert [each["outcome"] for each in await world.results()] == ["cancelled"]


async def test_cancelling_the_run_ends_the_wait_for_a_sandbox(world):
    world.operator.answers_wants = False
    gateway = await world.gateway()
    call = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1"))
    async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
        while not await world.events("sandbox.requested"):
            await watch.wait(1)

    await run_events.request_cancel(world.store, world.run, "enough")

    answer = await call
    assert (answer.outcome, answer.text) == ("cancelled", "[cancelled before it began]")


async def test_a_cancelled_call_is_killed_by_whichever_gateway_takes_it_up(world):
    killed = await world.gateway_process()
    call, sandbox = await begun(world, killed)
    await killed.kill()
    with pytest.raises(aiohttp.ClientError):
        await call
    await run_events.request_cancel(world.store, world.run, "enough")

    answer = await world.call(await world.gateway(), "exec", {"command": "hold a"}, call_id="tc_1")

    assert answer.outcome == "cancelled"
    assert await ledger.open_calls(world.store, world.run) == []
    async with asyncio.timeout(60):
        await asyncio.gather(*sandbox.results.values())


async def test_the_output_of_a_long_command_is_seen_while_it_runs(world):
    gateway = await world.gateway()
    call, sandbox = await begun(world, gateway)

    async with world.notices.watch(world.run) as watch, asyncio.timeout(60):
        while not (deltas := await live.read_deltas(world.store, world.run)):
            await watch.wait(1)
    sandbox.release("a")
    await call

    assert [delta for _, delta in deltas] == [
        {"kind": "tool_output", "call_id": "tc_1", "offset": 0, "text": "holding"}
    ]


async def test_what_holds_another_key_gets_not_one_byte_of_arguments(world):
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"})
    sandbox = world.operator.sandbox
    await sandbox.stop()
    sandbox.key, sandbox.requests, sandbox.executions = b"somebody else's", [], []
    await sandbox.start()
    other = await world.gateway()

    answer = await world.call(other, "exec", {"command": "echo secret"})

    assert answer.outcome == "error"
    assert "(KeyMismatch)" in answer.text
    assert [path for _, path, _, _ in sandbox.requests] == ["/v1/hello"]
    assert "secret" not in repr(sandbox.requests)


async def test_a_tool_server_that_hangs_while_its_process_lives_is_replaced(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.calls.SLACK_SECONDS", -0.7)
    monkeypatch.setattr("towline.gateway.sandbox_client.CONTROL_SECONDS", 0.3)
    monkeypatch.setattr("towline.gateway.lease.UNREACHABLE_SECONDS", 0.3)
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"})
    sandbox = world.operator.sandbox
    sandbox.hangs = True

    hung = [
        await world.call(gateway, "exec", {"command": "echo 2", "timeout_seconds": 1}, call_id=f"tc_{n}")
        for n in range(2)
    ]
    after = await world.call(gateway, "exec", {"command": "echo 3"})

    assert [answer.outcome for answer in hung] == ["unknown", "error"]
    assert "(NoAnswer)" in hung[0].text
    assert "not executed" in hung[1].text, "it was asked for a sign of life first"
    assert after.text == f"{RESET_NOTE}\n3"
    [lost] = await world.events("sandbox.lost")
    assert (lost.src, lost.payload["name"], lost.payload["reason"]) == ("gateway", sandbox.name, "Unresponsive")


async def test_one_call_without_an_answer_is_no_reason_to_give_a_sandbox_up(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.calls.SLACK_SECONDS", -0.7)
    gateway = await world.gateway()
    for number in range(3):
        call = await world.call(gateway, "exec", {"command": f"hold {number}", "timeout_seconds": 1})
        assert call.outcome == "unknown"
        assert (await world.call(gateway, "exec", {"command": "echo 1"})).outcome == "ok"

    assert len(world.operator.sandboxes) == 1


@pytest.mark.parametrize(
    "point",
    [
        *("gateway.claim.after", "gateway.dispatch.after", "gateway.forward.before", "gateway.forward.after"),
        *("gateway.reply", "gateway.settle.after", "gateway.answer.before"),
    ],
)
async def test_a_gateway_killed_anywhere_on_the_way_of_a_call_leaves_it_to_the_next_and_it_runs_once(world, point):
    killed, next_one = await world.gateway_process(f"{point}:1"), await world.gateway()
    with pytest.raises(aiohttp.ClientError):
        await world.call(killed, "exec", {"command": "echo 1"}, call_id="tc_1")

    answer = await world.call(next_one, "exec", {"command": "echo 1"}, call_id="tc_1")

    assert (answer.outcome, answer.text) == ("ok", "1")
    assert world.operator.sandbox.executions == ["tc_1"]
    assert [each["outcome"] for each in await world.results()] == ["ok"]


async def test_a_gateway_that_hangs_in_mid_call_is_stood_in_for_and_changes_nothing_when_it_goes_on(world):
    hung, other = await world.gateway_process(), await world.gateway()
    call, sandbox = await begun(world, hung)
    hung.process.send_signal(signal.SIGSTOP)

    again = asyncio.create_task(world.call(other, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox.release("a")
    answer = await again
    hung.process.send_signal(signal.SIGCONT)

    assert answer.text == "held a"
    assert (await call).result == answer.result
    assert sandbox.executions == ["tc_1"]
    assert len(await world.results()) == 1
