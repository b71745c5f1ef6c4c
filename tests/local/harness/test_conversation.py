"""Harness processes in a run that people talk to: they sleep and wake, are steered and interrupted, and go on from a
summary or from another run."""

import asyncio
import time

import pytest

from tests.local.harness.conftest import harness_run, scripted, served
from tests.local.harness.gateway import RESULT, result, serving, stream
from towline import inbox
from towline.api.snapshot import ScriptedStep
from towline.errors import Gap
from towline.events import runs
from towline.events.log import EventLog
from towline.exit_codes import HarnessExit
from towline.testing.scripted_server import ScriptedServer

SLOW = ScriptedStep(text="word " * 3000, chunk_milliseconds=20)  # a minute: no test sees its end
HEARD_WITHIN_SECONDS = 3.0  # 0.05 measured, 5 promised; the rest is for a loaded machine
SLEEPY = {"suspend_after_seconds": 1}


async def state(run):
    return await EventLog(run.store, run.ref).state()


async def test_a_run_that_nobody_prompts_falls_asleep_and_the_next_harness_goes_on(run):
    model = scripted({"text": "one"}, {"text": "You said: {{prompt.1}} and {{prompt.last}}"})
    await run.create(model, interactive=True, idle_policy=SLEEPY)

    assert (await run.work())[0] == HarnessExit.ASLEEP
    asleep = await state(run)
    assert (asleep.unread, asleep.closed) == (0, None)
    assert asleep.waiting == (await run.wait_for("turn.waiting")).time

    prompt = await inbox.post(run.store, run.ref, "Remember.", key="a")
    assert (await state(run)).unread == 1
    assert (await run.work(epoch=2))[0] == HarnessExit.ASLEEP
    assert (await state(run)).unread == 0
    assert (await inbox.wait_for_reply(run.store, run.ref, prompt.id)).text == "You said: Go. and Remember."


async def test_a_run_that_waited_as_long_as_it_may_completes_also_when_it_slept_meanwhile(run):
    idle = {"suspend_after_seconds": 1, "finish_after_seconds": 6}
    await run.create(scripted({"text": "one"}), interactive=True, idle_policy=idle)

    assert (await run.work())[0] == HarnessExit.ASLEEP
    epoch = 2
    while (await run.work(epoch=epoch))[0] == HarnessExit.ASLEEP:
        epoch += 1

    assert (await run.payload("run.completed"))["result"]["text"] == "one"
    assert (await run.types()).count("turn.waiting") == 1


async def test_an_interruption_closes_the_model_s_stream_and_is_answered(run):
    async with ScriptedServer([SLOW, ScriptedStep(text="Stopped.")]) as server:
        await run.create(served(server))
        process = await run.start()
        await run.live_text(40)

        began = time.monotonic()
        prompt = await inbox.post(run.store, run.ref, "Stop.", key="a", delivery="interrupt")
        aborted = (await run.wait_for("agent.message_aborted")).payload
        took = time.monotonic() - began
        async with asyncio.timeout(60):
            await server.left_early.wait()
        code, _ = await run.end(process)

    assert (code, aborted["reason"]) == (0, "Interrupted")
    assert took < HEARD_WITHIN_SECONDS
    assert len(aborted["partial"]) >= 40
    assert await inbox.wait_for_reply(run.store, run.ref, prompt.id) == inbox.Reply("Stopped.", "end_turn")
    sent = server.requests[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"][0]["text"] == aborted["partial"]
    usages = [event.payload["usage"] for event in await run.events() if event.type == "span.model_request_end"]
    assert usages[0]["input_tokens"] > 0  # as the provider had reported before it was interrupted


async def test_an_interruption_cancels_the_running_call_by_its_id(run):
    cancelled = {**RESULT, "isError": True, "_meta": {"towline.dev/outcome": "cancelled"}}
    async with serving(stream(hang=True), result(cancelled)) as (gateway, url):
        await run.create(
            scripted({"tool_calls": [{"name": "exec", "arguments": {}}]}, {"text": "Stopped."}), tools=["exec"]
        )
        process = await run.start(gateway_url=url)
        async with asyncio.timeout(60):
            while not gateway.calls:
                await asyncio.sleep(0.01)
        await inbox.post(run.store, run.ref, "Stop.", key="a", delivery="interrupt")
        code, _ = await run.end(process)

    assert code == 0
    called, cancel = (call["_meta"] for call in gateway.calls)
    assert cancel["towline.dev/call-id"] == called["towline.dev/call-id"]
    assert (called.get("towline.dev/cancel"), cancel["towline.dev/cancel"]) == (None, True)
    reasons = [event.payload["stop_reason"] for event in await run.events() if event.type == "turn.completed"]
    assert reasons == ["interrupted", "end_turn"]


async def test_a_steering_prompt_reaches_the_running_turn(run):
    async def steer(request, id_):
        await inbox.post(run.store, run.ref, "In French.", key="a", delivery="steer")
        return await result()(request, id_)

    async with serving(steer) as (_, url):
        steps = ({"tool_calls": [{"name": "exec", "arguments": {}}]}, {"text": "{{prompt.last}}"})
        await run.create(scripted(*steps), tools=["exec"])
        assert (await run.work(gateway_url=url))[0] == 0

    assert (await run.types()).count("turn.started") == 1
    assert (await run.payload("run.completed"))["result"]["text"] == "In French."


async def test_a_long_history_is_compacted_and_resumed_from_there(run):
    model = {**scripted(*[{"text": "word " * 200}] * 6, {"text": "Done."}), "context_tokens": 1000}
    await run.create(model, interactive=True, idle_policy=SLEEPY)
    for number in range(5):
        await inbox.post(run.store, run.ref, f"Prompt {number}.", key=f"{number}")
    assert (await run.work())[0] == HarnessExit.ASLEEP
    before = await state(run)
    assert before.compacted > 0

    prompt = await inbox.post(run.store, run.ref, "And?", key="last")
    code, lines = await run.work(epoch=2)

    assert code == HarnessExit.ASLEEP
    started = next(line for line in lines if line["event"] == "harness started")
    assert started["entries"] == before.head - before.compacted + 1 < before.head
    assert (await inbox.wait_for_reply(run.store, run.ref, prompt.id)).text == "Done."


async def test_of_a_log_trimmed_at_a_compaction_the_replies_are_found_from_its_turn_on(run):
    model = {**scripted(*[{"text": "word " * 200}] * 7), "context_tokens": 1000}
    await run.create(model, interactive=True, idle_policy=SLEEPY)
    for number in range(6):
        await inbox.post(run.store, run.ref, f"Prompt {number}.", key=f"{number}")
    assert (await run.work())[0] == HarnessExit.ASLEEP
    last = (await state(run)).compacted
    [compacted] = await EventLog(run.store, run.ref).read(last, 1)
    [prompt_id] = compacted.payload["turn_prompts"]

    await runs.trim(run.store, run.ref, last, above=0)

    assert (await inbox.wait_for_reply(run.store, run.ref, prompt_id)).stop_reason == "end_turn"
    with pytest.raises(Gap):
        async with asyncio.timeout(60):
            await inbox.wait_for_reply(run.store, run.ref, "1-0")


async def test_a_run_continues_from_another_s_history_and_begins_its_own_counts(run, valkey_url, tmp_path):
    await run.create(scripted({"text": "Noted."}))
    await run.work()
    async with harness_run(valkey_url, tmp_path) as second:
        source = {"namespace": run.ref.namespace, "uid": run.ref.uid}
        model = scripted({"text": "Before: {{prompt.1}} Now: {{prompt.2}}"})
        await second.create(model, prompt="Go on.", continue_from=source, limits={"max_turns": 1})
        assert (await second.work())[0] == 0

        compacted = await second.payload("context.compacted")
        completed = await second.payload("run.completed")
    assert (compacted["reason"], compacted["source"]) == ("continued", {"uid": run.ref.uid, "seq": 11})
    assert completed["result"]["text"] == "Before: Go. Now: Go on."
    assert completed["turns"] == 1


@pytest.mark.parametrize(("source", "words"), [("none", "is gone"), ("ours", "ends at seq 11, before seq 99")])
async def test_a_run_whose_source_is_not_there_fails_and_says_so(source, words, run, valkey_url, tmp_path):
    await run.create(scripted({"text": "x"}))
    await run.work()
    async with harness_run(valkey_url, tmp_path) as second:
        uid = run.ref.uid if source == "ours" else source
        await second.create(scripted({"text": "x"}), continue_from={"namespace": "default", "uid": uid, "seq": 99})
        assert (await second.work())[0] == 0

        failed = await second.payload("run.failed")
    assert failed["reason"] == "StoreLost"
    assert words in failed["message"]


async def test_prompts_that_an_older_version_took_uncounted_do_not_wake_the_run_for_ever(run):
    await run.create(scripted({"text": "one"}, {"text": "two"}), interactive=True, idle_policy=SLEEPY)
    await inbox.post(run.store, run.ref, "Second.", key="a")
    await run.work()
    await run.store.client.execute_command("HDEL", run.ref.keys.meta, "prompts")
    assert (await state(run)).unread == 1

    assert (await run.work(epoch=2))[0] == HarnessExit.ASLEEP
    assert (await state(run)).unread == 0
