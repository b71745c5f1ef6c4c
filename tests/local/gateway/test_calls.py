"""One tool call: what is executed, what is recorded, what the caller is told."""

import asyncio

import pytest

from towline.api.snapshot import Policy, Sandbox, WorkspaceFile
from towline.clock import utc_now
from towline.errors import StoreUnavailable
from towline.events import calls as ledger
from towline.events import runs as run_events
from towline.events import sandbox as sandbox_events
from towline.events.adopted import adopted
from towline.events.event import draft
from towline.events.log import EventLog
from towline.events.sandbox import SandboxRecord
from towline.gateway import lease
from towline.naming import sandbox_name


async def test_a_call_is_executed_once_and_recorded_as_one_use_and_one_result(world):
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "echo hello"}, call_id="tc_1")

    assert (answer.status, answer.text, answer.outcome) == (200, "hello", "ok")
    assert answer.result["isError"] is False
    assert answer.result["_meta"]["towline.dev/call-id"] == "tc_1"
    assert "structuredContent" not in answer.result
    assert world.operator.sandbox.executions == ["tc_1"]
    use, result = await world.events("agent.tool_use", "agent.tool_result")
    assert use.payload == {
        "call_id": "tc_1",
        "name": "exec",
        "input": {"command": "echo hello"},
        "decision": {"action": "Allow", "rule": "default"},
    }
    assert result.payload["content"] == [{"type": "text", "text": "hello"}]
    assert (result.src, result.payload["outcome"], result.payload["exit_code"]) == ("gateway", "ok", 0)
    assert (await EventLog(world.store, world.run).state()).totals.tool_calls == 1


async def test_the_sandbox_is_wanted_by_the_first_call_only(world):
    gateway = await world.gateway()

    for number in range(3):
        await world.call(gateway, "exec", {"command": "echo again"}, call_id=f"tc_{number}")

    assert len(world.operator.sandboxes) == 1
    assert len(await world.events("sandbox.requested")) == 1


async def test_calls_that_come_at_once_share_one_sandbox_and_one_hello(world):
    gateway = await world.gateway()

    answers = await asyncio.gather(
        *(world.call(gateway, "exec", {"command": f"echo {n}"}, call_id=f"tc_{n}") for n in range(8))
    )

    assert [answer.text for answer in answers] == [str(n) for n in range(8)]
    hellos = [path for _, path, _, _ in world.operator.sandbox.requests if path == "/v1/hello"]
    assert len(hellos) == 1


async def test_a_fresh_workspace_gets_the_files_of_the_run_before_the_first_command(world_of):
    world = await world_of(workspace=(WorkspaceFile(path="a/b.sh", content="x", executable=True),))
    gateway = await world.gateway()

    await world.call(gateway, "exec", {"command": "echo 1"})
    await world.call(gateway, "exec", {"command": "echo 2"})

    assert world.operator.sandbox.seeded == [[{"path": "a/b.sh", "content": "x", "mode": 0o755}]]
    paths = [path for _, path, _, _ in world.operator.sandbox.requests]
    assert paths[:2] == ["/v1/hello", "/v1/seed"]


async def test_a_repeat_of_a_settled_call_gets_the_stored_result_without_a_second_execution(world):
    gateway = await world.gateway()
    first = await world.call(gateway, "exec", {"command": "echo once"}, call_id="tc_1")

    again = await world.call(gateway, "exec", {"command": "echo once"}, call_id="tc_1")

    assert again.result == first.result
    assert world.operator.sandbox.executions == ["tc_1"]
    assert len(await world.results()) == 1


async def test_repeats_that_come_while_the_call_runs_wait_for_the_one_execution(world):
    gateway = await world.gateway()
    calls = [asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1")) for _ in range(3)]
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)

    sandbox.release("a")

    assert [answer.text for answer in await asyncio.gather(*calls)] == ["held a"] * 3
    assert sandbox.executions == ["tc_1"]


async def test_a_call_id_with_other_arguments_is_refused(world):
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1")

    other = await world.call(gateway, "exec", {"command": "echo 2"}, call_id="tc_1")

    assert other.reason == "CallMismatch"
    assert world.operator.sandbox.executions == ["tc_1"]


async def test_without_a_call_id_the_gateway_makes_one(world):
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "echo 1"})

    assert answer.result["_meta"]["towline.dev/call-id"].startswith("tc_")


@pytest.mark.parametrize("call_id", ["", "a" * 41, "with space", "ünï", "a:b"])
async def test_a_malformed_call_id_is_an_invalid_parameter_and_leaves_no_record(world, call_id):
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "echo 1"}, call_id=call_id)

    assert (answer.status, answer.body["error"]["code"]) == (400, -32602)
    assert await world.events("agent.tool_use") == []


async def test_an_unknown_tool_is_an_error_result_that_names_the_tools_there_are(world):
    gateway = await world.gateway()

    answer = await world.call(gateway, "bash", {"command": "id"}, call_id="tc_1")

    assert (answer.outcome, answer.result["isError"]) == ("error", True)
    assert (
        answer.text
        == "There is no tool named bash. Available: exec, read_file, write_file, edit_file, list_dir, search."
    )
    (use,) = await world.events("agent.tool_use")
    assert use.payload["decision"] == {"action": "Deny", "rule": "unknown tool"}
    assert [each["outcome"] for each in await world.results()] == ["error"]
    assert world.operator.sandboxes == []


async def test_a_tool_that_the_run_is_not_offered_is_unknown_to_it(world_of):
    world = await world_of(tools=("read_file",))
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "id"})

    assert answer.text == "There is no tool named exec. Available: read_file."


async def test_broken_arguments_are_an_error_result_that_says_what_was_expected(world):
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "id", "timeout_seconds": 0, "sudo": True}, call_id="tc_1")

    assert answer.outcome == "error"
    assert "argument sudo is unknown: exec takes command, timeout_seconds, cwd" in answer.text
    assert "argument timeout_seconds is 0: expected at least 1" in answer.text
    assert len(await world.results()) == 1
    assert world.operator.sandboxes == []


async def test_arguments_that_were_no_object_are_recorded_with_their_raw_text(world):
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", call_id="tc_1", meta={"towline.dev/unparsable": '{"command": "ls'})

    assert answer.outcome == "error"
    assert "not a JSON object" in answer.text
    (use,) = await world.events("agent.tool_use")
    assert (use.payload["input"], use.payload["input_text"]) == ({}, '{"command": "ls')


async def test_a_denied_tool_is_told_recorded_and_never_executed(world_of, deny_exec):
    world = await world_of(policy=deny_exec)
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "id"}, call_id="tc_1")

    assert answer.outcome == "denied"
    assert "does not allow exec (rules[0]: exec)" in answer.text
    events = [each.type for each in await world.events()]
    assert events == ["run.started", "agent.tool_use", "policy.denied", "agent.tool_result"]
    assert world.operator.sandboxes == []


async def test_a_denied_tool_with_broken_arguments_is_denied(world_of, deny_exec):
    world = await world_of(policy=deny_exec)
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", meta={"towline.dev/unparsable": "rm"})

    assert answer.outcome == "denied"


async def test_what_no_rule_names_is_denied_unless_the_template_says_otherwise(world_of):
    world = await world_of(policy=Policy())
    gateway = await world.gateway()

    answer = await world.call(gateway, "read_file", {"path": "a"})

    assert answer.outcome == "denied"


async def test_a_run_without_a_sandbox_answers_that_it_has_none(world_of):
    world = await world_of(sandbox=Sandbox(policy="Never"))
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "id"})

    assert answer.outcome == "error"
    assert "no sandbox" in answer.text
    assert await world.events("sandbox.requested") == []


async def test_a_sandbox_that_cannot_start_is_an_error_result_with_the_reason(world):
    gateway = await world.gateway()
    world.operator.fail_with = "ImagePullBackOff"

    answer = await world.call(gateway, "exec", {"command": "id"})

    assert answer.outcome == "error"
    assert answer.text == "The call was not executed: no room (ImagePullBackOff)."


async def test_a_sandbox_that_never_comes_is_an_error_result_after_the_start_timeout(world_of):
    world = await world_of(sandbox=Sandbox(start_timeout_seconds=1))
    world.operator.answers_wants = False
    gateway = await world.gateway()

    answer = await world.call(gateway, "exec", {"command": "id"})

    assert answer.outcome == "error"
    assert "no sandbox was ready within 1 s (StartTimeout)" in answer.text


async def test_the_operators_reason_for_a_start_that_took_too_long_is_waited_for(world_of):
    """Else the next call, which may come at once, would fail with this one's sandbox."""
    world = await world_of(sandbox=Sandbox(start_timeout_seconds=1))
    world.operator.answers_wants, world.operator.fail_with = False, "NameTaken"
    gateway = await world.gateway()
    calling = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 1"}))

    await asyncio.sleep(1.1)
    world.operator.answers_wants = True
    first = await calling
    world.operator.fail_with = ""
    second = await world.call(gateway, "exec", {"command": "echo 2"})

    assert "NameTaken" in first.text
    assert second.outcome == "ok"


async def test_a_sandbox_that_ends_before_it_answers_is_the_calls_answer_and_no_reason_for_another(world):
    """A tool server that cannot start would else be started again and again, and nobody told why."""
    gateway, operator = await world.gateway(), world.operator
    operator.answers_wants = False
    calling = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 1"}))
    name = sandbox_name(world.run.uid, 1)
    async with world.notices.watch(world.run) as watch:
        while (await sandbox_events.read(world.store, world.run)).state != "Starting":
            await watch.wait(0.1)
    ready = SandboxRecord(name, "Ready", f"unix:{world.folder}/nobody.sock", "local", generation=1)
    await sandbox_events.mark_ready(world.store, world.run, 1, ready, ms=5, start="cold", now=utc_now())
    await asyncio.sleep(0.3)  # the gateway has dialled
    why = "the tool server ended with status 1: no room"
    await sandbox_events.mark_lost(world.store, world.run, 1, name, "Exited", why, now=utc_now())

    answer = await calling

    assert answer.outcome == "error"
    assert answer.text == f"The call was not executed: {why} (Exited)."
    assert len(await world.events("sandbox.requested")) == 1


async def test_a_sandbox_that_has_vanished_since_the_last_call_is_replaced_for_the_next(world):
    gateway = await world.gateway()
    await world.call(gateway, "exec", {"command": "echo 1"})
    await world.operator.sandbox.stop()
    await asyncio.sleep(lease.TRUSTED_SECONDS)
    calling = asyncio.create_task(world.call(gateway, "exec", {"command": "echo 2"}))
    await asyncio.sleep(0.2)

    await world.operator.lose("Evicted")

    assert (await calling).outcome == "ok"
    assert len(world.operator.sandboxes) == 2


async def test_after_a_failed_start_the_next_call_tries_again(world):
    gateway = await world.gateway()
    world.operator.fail_with = "Quota"
    await world.call(gateway, "exec", {"command": "echo 1"})
    world.operator.fail_with = ""

    answer = await world.call(gateway, "exec", {"command": "echo 2"})

    assert answer.outcome == "ok"


async def test_a_stale_epoch_is_refused_even_for_a_call_that_runs(world):
    gateway = await world.gateway()
    running = asyncio.create_task(
        world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1", token=world.token(epoch=2))
    )
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)

    attach = await world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1", token=world.token(epoch=1))
    other = await world.call(gateway, "exec", {"command": "echo 2"}, call_id="tc_2", token=world.token(epoch=1))

    assert (attach.reason, other.reason) == ("Fenced", "Fenced")
    sandbox.release("a")
    assert (await running).outcome == "ok"


async def test_a_new_harness_attaches_to_the_call_of_the_one_before(world):
    gateway = await world.gateway()
    old = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)

    new = asyncio.create_task(
        world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1", token=world.token(epoch=2))
    )
    sandbox.release("a")

    assert (await new).text == (await old).text == "held a"
    assert sandbox.executions == ["tc_1"]


async def test_a_run_of_another_token_is_out_of_reach(world):
    gateway = await world.gateway()
    other = await world.new_run()
    await world.call(gateway, "exec", {"command": "echo secret"}, call_id="tc_1")

    answer = await world.call(gateway, "nothing", {"command": "echo secret"}, call_id="tc_1", token=world.token(other))

    assert "secret" not in answer.text
    assert len(await world.events("agent.tool_use")) == 1
    assert len(await world.events("agent.tool_use", run=other)) == 1


async def test_a_run_that_does_not_exist_is_refused(world):
    gateway = await world.gateway()
    other = type(world.run)("test", "0" * 32, "")

    answer = await world.call(gateway, "exec", {"command": "id"}, token=world.token(other))

    assert answer.reason == "UnknownRun"


async def test_a_finished_run_takes_no_call_but_still_tells_the_results_it_has(world):
    gateway = await world.gateway()
    first = await world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1")
    end = draft("run.cancelled", {"reason": "test"}, now=utc_now())
    await run_events.finish(world.store, world.run, 1, end)

    late = await world.call(gateway, "exec", {"command": "echo 2"}, call_id="tc_2")
    again = await world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1")

    assert late.reason == "LogClosed"
    assert again.result == first.result


async def test_a_cancelled_run_takes_no_new_call(world):
    gateway = await world.gateway()
    await run_events.request_cancel(world.store, world.run, "enough")

    answer = await world.call(gateway, "exec", {"command": "echo 1"})

    assert answer.reason == "Cancelled"
    assert await world.events("agent.tool_use") == []


async def test_the_callers_token_never_reaches_the_sandbox(world):
    gateway = await world.gateway()
    token = world.token()

    await world.call(gateway, "exec", {"command": "echo 1"}, token=token, headers={"Cookie": "a=b", "X-Key": "k"})

    for _, _, headers, body in world.operator.sandbox.requests:
        assert token not in repr(headers) + repr(body)
        assert not {"Cookie", "X-Key"} & set(headers)


async def test_settled_calls_are_acknowledged_with_a_later_request(world, monkeypatch):
    monkeypatch.setattr("towline.gateway.lease.ACKNOWLEDGE_SECONDS", 0.0)
    gateway = await world.gateway()

    await world.call(gateway, "exec", {"command": "echo 1"}, call_id="tc_1")
    await world.call(gateway, "exec", {"command": "echo 2"}, call_id="tc_2")

    _, _, headers, _ = world.operator.sandbox.requests[-1]
    assert headers["Towline-Ack"] == "tc_1"


async def test_the_calls_of_a_run_above_its_queue_are_refused_and_the_rest_is_served(world):
    gateway = await world.gateway()
    calls = [
        asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id=f"tc_{n}")) for n in range(80)
    ]
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    sandbox.release("a")

    answers = await asyncio.gather(*calls)

    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) == 80 - 8 - 64
    assert refused[0].headers["retry-after"] == "1"
    assert len([answer for answer in answers if answer.status == 200]) == 72


@pytest.mark.parametrize("at_another", [False, True])
async def test_a_call_that_the_store_lost_is_asked_for_again_and_its_result_taken_up(world, at_another):
    gateway, other = await world.gateway(), await world.gateway()
    running = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    await world.store.client.delete(world.run.keys.calls)

    sandbox.release("a")

    lost = await running
    assert (lost.status, lost.reason) == (503, "StoreLost")
    assert [event.payload["incarnation"] for event in await world.events("store.lost")] == [2]
    meta = {"towline.dev/dispatched": lost.body["error"]["data"]["dispatched"]}
    again = await world.call(
        other if at_another else gateway, "exec", {"command": "hold a"}, call_id="tc_1", meta=meta if at_another else {}
    )
    assert again.text == "held a"
    assert sandbox.executions == ["tc_1"]
    assert [each["outcome"] for each in await world.results()] == ["ok"]


async def test_a_call_that_the_store_lost_goes_to_no_other_sandbox(world):
    gateway, other = await world.gateway(), await world.gateway()
    running = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    await world.store.client.delete(world.run.keys.calls)
    sandbox.release("a")
    meta = {"towline.dev/dispatched": (await running).body["error"]["data"]["dispatched"]}
    await world.operator.lose()

    again = await world.call(other, "exec", {"command": "hold a"}, call_id="tc_1", meta=meta)

    assert again.outcome == "unknown"
    assert len(world.operator.sandboxes) == 1


@pytest.mark.parametrize("told_by_the_caller", [False, True])
async def test_who_has_a_lost_call_is_remembered_until_the_ledger_knows_it_again(
    world, monkeypatch, told_by_the_caller
):
    monkeypatch.setattr("towline.gateway.lease.TRUSTED_SECONDS", 0.0)
    gateway = await world.gateway()
    running = asyncio.create_task(world.call(gateway, "exec", {"command": "hold a"}, call_id="tc_1"))
    sandbox = await world.operator.started()
    await asyncio.wait_for(sandbox.began.wait(), 60)
    await world.store.client.delete(world.run.keys.calls)
    sandbox.release("a")
    meta = {"towline.dev/dispatched": (await running).body["error"]["data"]["dispatched"]}
    asked = await world.gateway() if told_by_the_caller else gateway
    dispatch = ledger.dispatch

    async def is_away(*_, **__):
        monkeypatch.setattr(ledger, "dispatch", dispatch)
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(ledger, "dispatch", is_away)
    away = await world.call(
        asked, "exec", {"command": "hold a"}, call_id="tc_1", meta=meta if told_by_the_caller else {}
    )
    assert away.reason == "StoreUnavailable"
    await world.operator.lose()

    again = await world.call(asked, "exec", {"command": "hold a"}, call_id="tc_1")  # by a new harness

    assert again.outcome == "unknown"
    assert len(world.operator.sandboxes) == 1


async def test_a_result_tells_its_caller_how_to_put_its_events_back(world_of, deny_exec):
    world = await world_of(policy=deny_exec)
    one, two = await world.gateway(), await world.gateway()
    for call_id, tool, arguments in (("tc_1", "write_file", {"path": "a", "content": "ä"}), ("tc_2", "exec", {})):
        for gateway in (one, two):  # the second reads it out of the log
            answer = await world.call(gateway, tool, arguments, call_id=call_id)

            back = adopted(
                answer.result["_meta"]["towline.dev/record"],
                call_id=call_id,
                name=tool,
                arguments=arguments,
                unparsable=None,
                outcome=answer.outcome,
                text=answer.text,
            )

            events = [each for each in await world.events() if each.payload.get("call_id") == call_id]
            events = [each for each in events if each.type != "sandbox.requested"]
            assert [(each.id, each.type, each.time, each.data) for each in back.drafts] == [
                (each.id, each.type, each.time, each.data) for each in events
            ]
            assert (back.first, back.last) == (events[0].seq, events[-1].seq)
