"""Harness processes on a real store: how they begin, what ends them, and that the next goes on where one stopped."""

import asyncio
import signal
import time

import pytest

from tests.local.harness.conftest import scripted, served
from tests.local.harness.gateway import error, plain, result, serving, stream
from towline import inbox
from towline.api.snapshot import ScriptedStep
from towline.clock import utc_now
from towline.events import runs
from towline.events.event import draft
from towline.testing.scripted_server import Fault, ScriptedServer

SLOW = ScriptedStep(text="word " * 3000, chunk_milliseconds=20)  # a minute: no test sees its end
QUICK = SLOW.model_copy(update={"chunk_milliseconds": 0})
KEY = "sk-test-0123456789-abcdefghij"
LEFT_WITHIN_SECONDS = 3.0  # 0.01 measured, 1 promised; the rest is for a loaded machine


async def test_a_run_without_tools_goes_from_start_to_end(run):
    await run.create(scripted({"text": "Hello."}))

    code, lines = await run.work()

    assert code == 0
    assert await run.types() == [
        "run.started",
        "harness.started",
        "harness.sealed",
        "turn.started",
        "user.message",
        "span.model_request_start",
        "agent.message_start",
        "span.model_request_end",
        "agent.message",
        "turn.completed",
        "run.completed",
    ]
    sealed = await run.payload("harness.sealed")
    assert sealed["filters"] >= 1
    assert sealed["instructions"] > 100
    stories = [line["event"] for line in lines if line["level"] != "debug"]
    assert stories == ["harness started", "run finished"]


async def test_the_whole_answer_was_shown_live(run):
    text = "A longer answer, in words. " * 20
    await run.create(scripted({"text": text, "thinking": "Hm."}))

    await run.work()

    entries = await run.store.client.execute_command("XRANGE", run.ref.keys.live, "-", "+")
    shown = [fields[b"text"].decode() for _, fields in entries if fields[b"kind"] == b"text"]
    assert "".join(shown) == text


async def test_tools_are_called_through_the_gateway(run):
    async with serving(result()) as (gateway, url):
        await run.create(
            scripted({"tool_calls": [{"name": "exec", "arguments": {"command": "ls"}}]}, {"text": "Done."}),
            tools=["exec"],
        )
        code, _ = await run.work(gateway_url=url)

    assert code == 0
    message = next(event for event in await run.events() if event.type == "agent.message")
    [block] = message.payload["content"]
    assert gateway.calls[0]["_meta"]["towline.dev/call-id"] == block["call_id"]
    assert (await run.payload("run.completed"))["result"]["text"] == "Done."


@pytest.mark.parametrize(
    ("refusal", "words"),
    [(plain(421), "HTTP 421"), (plain(404), "HTTP 404"), (error("UnknownRun", message="no such run"), "no such run")],
)
async def test_a_gateway_that_will_not_name_its_tools_fails_the_run_at_once_and_with_its_words(refusal, words, run):
    async with serving(result(), listing=refusal) as (gateway, url):
        await run.create(scripted({"text": "x"}), tools=["exec"])
        code, _ = await run.work(gateway_url=url)

    failed = await run.payload("run.failed")
    assert (code, failed["reason"], len(gateway.requests)) == (0, "GatewayRefused", 1)
    assert words in failed["message"]


@pytest.mark.parametrize("api", ["AnthropicMessages", "OpenAIChatCompletions"])
async def test_a_key_that_is_refused_fails_the_run_and_appears_nowhere(api, run):
    run.key_file.write_text("sk-wrong-9876543210")
    async with ScriptedServer([], key=KEY) as server:
        await run.create(served(server, api))
        code, lines = await run.work()

    assert code == 0
    failed = await run.payload("run.failed")
    assert failed["reason"] == "ModelAuthentication"
    assert "[key]" in failed["message"]
    everything = b"".join(event.line() for event in await run.events()).decode() + str(lines)
    assert "sk-wrong" not in everything
    assert len(server.requests) == 1


async def test_passing_faults_of_the_provider_do_not_show_in_the_result(run):
    faults = {0: Fault(status=429, retry_after="0"), 1: Fault(cut_after_bytes=700)}
    async with ScriptedServer([ScriptedStep(text="Done.")], faults) as server:
        await run.create(served(server))
        code, _ = await run.work()

    assert code == 0
    assert (await run.types()).count("turn.retrying") == 2
    assert (await run.payload("run.completed"))["result"]["text"] == "Done."


@pytest.mark.parametrize("cancel", ["request", "terminate"])
async def test_a_run_is_left_at_once_in_the_middle_of_an_answer(cancel, run):
    async with ScriptedServer([SLOW]) as server:
        await run.create(served(server))
        process = await run.start()
        await run.live_text(20)

        began = time.monotonic()
        if cancel == "request":
            await runs.request_cancel(run.store, run.ref, "enough")
        else:
            process.send_signal(signal.SIGTERM)
        code, _ = await run.end(process)
        took = time.monotonic() - began
        async with asyncio.timeout(60):
            await server.left_early.wait()

    assert code == 11
    assert took < LEFT_WITHIN_SECONDS
    assert "run.cancelled" not in await run.types()  # the operator's to write


async def test_a_run_is_left_at_once_in_the_middle_of_a_call(run):
    async with serving(stream(hang=True)) as (gateway, url):
        await run.create(scripted({"tool_calls": [{"name": "exec", "arguments": {}}]}), tools=["exec"])
        process = await run.start(gateway_url=url)
        await run.wait_for("agent.message")
        async with asyncio.timeout(60):
            while not gateway.calls:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code, _ = await run.end(process)
            assert (code, time.monotonic() - began < LEFT_WITHIN_SECONDS) == (11, True)
            await gateway.left.wait()


async def test_killed_in_the_middle_of_an_answer_the_next_one_asks_again(run):
    steps = [SLOW]
    async with ScriptedServer(steps) as server:
        await run.create(served(server))
        first = await run.start()
        await run.live_text(40)
        first.kill()
        await first.wait()
        steps[0] = QUICK

        second = await run.start(epoch=2)
        aborted = (await run.wait_for("agent.message_aborted")).payload
        code, _ = await run.end(second)

    assert code == 0
    assert aborted["reason"] == "HarnessLost"
    assert len(aborted["partial"]) >= 40
    assert SLOW.text.startswith(aborted["partial"])
    resumed = await run.payload("harness.resumed")
    assert resumed == {"from_seq": 7, "open_calls": []}
    assert (await run.payload("agent.message"))["content"][0]["text"] == SLOW.text
    assert (await run.types()).count("turn.started") == 1


async def test_killed_in_the_middle_of_a_call_the_next_one_asks_for_the_same_call(run):
    async with serving(stream(hang=True), result()) as (gateway, url):
        await run.create(
            scripted({"tool_calls": [{"name": "exec", "arguments": {}}]}, {"text": "Done."}), tools=["exec"]
        )
        first = await run.start(gateway_url=url)
        async with asyncio.timeout(60):
            while not gateway.calls:
                await asyncio.sleep(0.01)
        first.kill()
        await first.wait()

        code, _ = await run.work(epoch=2, gateway_url=url)

    assert code == 0
    ids = [call["_meta"]["towline.dev/call-id"] for call in gateway.calls]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert (await run.payload("harness.resumed"))["open_calls"] == ids[:1]


async def test_a_second_harness_fences_the_first(run):
    steps = [SLOW]
    async with ScriptedServer(steps) as server:
        await run.create(served(server))
        first = await run.start(epoch=1)
        await run.live_text(20)
        steps[0] = QUICK

        second = await run.start(epoch=2)
        code, lines = await run.end(first)
        assert (code, lines[-1]["event"]) == (10, "harness fenced")
        assert (await run.end(second))[0] == 0

    epochs = [event.epoch for event in await run.events()]
    assert epochs == sorted(epochs)


async def test_a_harness_that_comes_late_writes_nothing(run):
    await run.create(scripted({"text": "x"}))
    await runs.append_once(run.store, run.ref, 3, [draft("run.status", {}, now=utc_now())], "status")

    assert (await run.work(epoch=2))[0] == 10
    assert await run.types() == ["run.started", "run.status"]


async def test_a_finished_run_is_left_alone(run):
    await run.create(scripted({"text": "x"}))
    await run.work()
    before = await run.types()

    assert (await run.work(epoch=2))[0] == 0
    assert await run.types() == before


async def test_a_run_cancelled_before_it_began_is_left_to_the_operator(run):
    await run.create(scripted({"text": "x"}))
    await runs.request_cancel(run.store, run.ref, "never mind")

    assert (await run.work())[0] == 11
    assert await run.types() == ["run.started"]


async def test_prompts_of_the_inbox_follow_the_run_s_own(run):
    await run.create(scripted({"text": "one"}, {"text": "two"}))
    await inbox.post(run.store, run.ref, "Second.", key="a")

    await run.work()

    contents = [event.payload["content"] for event in await run.events() if event.type == "user.message"]
    assert contents == ["Go.", "Second."]


async def test_an_interactive_run_waits_for_prompts_and_wakes(run):
    await run.create(scripted({"text": "one"}, {"text": "two"}), interactive=True)
    process = await run.start()
    await run.wait_for("turn.waiting")

    began = time.monotonic()
    await inbox.post(run.store, run.ref, "Second.", key="a")
    async with asyncio.timeout(60):
        while (await run.types()).count("turn.waiting") < 2:
            await asyncio.sleep(0.01)
    assert time.monotonic() - began < 2  # by notice, not by the net
    process.send_signal(signal.SIGTERM)

    assert (await run.end(process))[0] == 11
    assert (await run.types()).count("turn.completed") == 2


async def test_without_a_spec_the_process_says_so(run):
    code, lines = await run.work()

    assert code == 1
    assert "holds no spec" in lines[-1]["cause"]


async def test_wrong_settings_are_all_named(run):
    code, lines = await run.work(TOWLINE_EPOCH="none", TOWLINE_GATEWAY_URL="")

    assert code == 1
    assert [line["event"].split()[0].partition("=")[0] for line in lines] == ["TOWLINE_EPOCH", "TOWLINE_GATEWAY_URL"]


async def test_a_store_that_is_away_is_waited_for_and_then_given_up(run, tmp_path):
    began = time.monotonic()
    code, lines = await run.end(
        await run.start(TOWLINE_REDIS_URL=f"unix://{tmp_path}/none.sock", TOWLINE_LOG_LEVEL="info"), within=60
    )

    assert code == 12
    assert lines[-1]["event"] == "store unreachable"
    assert 5 < time.monotonic() - began < 30


@pytest.mark.parametrize("moment", ["harness.sealed", "user.message", "agent.message_start", "agent.message"])
async def test_killed_at_any_moment_the_next_one_brings_the_run_to_the_same_end(moment, run):
    async with serving(result()) as (_, url):
        steps = [
            {"text": "First.", "tool_calls": [{"name": "exec", "arguments": {}}], "chunk_milliseconds": 20},
            {"text": "Done at last.", "chunk_milliseconds": 20},
        ]
        await run.create(scripted(*steps), tools=["exec"])
        first = await run.start(gateway_url=url)
        await run.wait_for(moment)
        first.kill()
        await first.wait()

        code, _ = await run.work(epoch=2, gateway_url=url)

    assert code == 0
    types = await run.types()
    assert types.count("turn.started") == types.count("run.completed") == 1
    answers = [event.payload["content"][0]["text"] for event in await run.events() if event.type == "agent.message"]
    assert answers == ["First.", "Done at last."]
