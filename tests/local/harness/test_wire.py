"""Model requests over real HTTP, against the scripted server: every way it can go wrong has its fault."""

import asyncio
import socket
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from towline.api.snapshot import Model, ScriptedStep
from towline.harness.models import wire
from towline.harness.models.base import (
    Finished,
    ModelAuthentication,
    ModelProtocolError,
    ModelRequestRejected,
    ModelUnavailable,
    Request,
    TextDelta,
    Tool,
)
from towline.harness.models.build import model_for
from towline.harness.process import open_session
from towline.harness.transcript import AssistantMessage, Text, ToolUse, UserMessage
from towline.testing.scripted_server import Fault, ScriptedServer

APIS = ["AnthropicMessages", "OpenAIChatCompletions"]
REQUEST = Request("msg_00000000000a", "Be brief.", (UserMessage("Go."),), ())
STEP = ScriptedStep(text="One two three four five.", thinking="Hm, hm.")
KEY = "sk-test-0123456789-abcdefghij"


@asynccontextmanager
async def model(server, api, *, key_file=None, timeout_seconds=10):
    base_url = server.url if api == "AnthropicMessages" else server.openai_url
    given = Model(api=api, provider="p", name="m", base_url=base_url, request_timeout_seconds=timeout_seconds)
    async with open_session() as session:
        yield model_for(given, session, key_file)


async def ask(server, api, request=REQUEST, **options):
    async with model(server, api, **options) as one:
        return [event async for event in one.stream(request)]


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return file


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_streams_word_by_word_and_ends_whole(api, key_file):
    async with ScriptedServer([STEP], key=KEY) as server:
        *deltas, finished = await ask(server, api, key_file=key_file)

    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == [
        "One ",
        "two ",
        "three ",
        "four ",
        "five.",
    ]
    assert isinstance(finished, Finished)
    assert finished.blocks[-1] == Text(STEP.text)
    assert finished.usage.output_tokens == 7


@pytest.mark.parametrize("api", APIS)
async def test_what_a_model_said_goes_back_as_it_came(api):
    """The scripted server refuses a thinking block whose signature is not the one it gave."""
    async with ScriptedServer([STEP, ScriptedStep(text="Done.")]) as server:
        *_, first = await ask(server, api)
        said = AssistantMessage("msg_a", first.blocks)
        *_, second = await ask(server, api, Request("msg_b", "", (UserMessage("Go."), said, UserMessage("On.")), ()))

    assert second.blocks == (Text("Done."),)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault(status=400, message="bad"), ModelRequestRejected, "HTTP 400: bad"),
        (Fault(status=404, message="no model m"), ModelRequestRejected, "HTTP 404: no model m"),
        (Fault(status=413, message="x" * 10_000), ModelRequestRejected, "HTTP 413: x"),
        (Fault(status=302, message="elsewhere"), ModelRequestRejected, "HTTP 302"),
        (Fault(status=401, message="who?"), ModelAuthentication, "HTTP 401: who?"),
        (Fault(status=403, message="not you"), ModelAuthentication, "HTTP 403: not you"),
        (Fault(status=429, message="slow down"), ModelUnavailable, "HTTP 429: slow down"),
        (Fault(status=500, message="oh"), ModelUnavailable, "HTTP 500: oh"),
        (Fault(status=529, message="overloaded"), ModelUnavailable, "HTTP 529: overloaded"),
        (Fault(malformed_json=True), ModelProtocolError, "malformed"),
        (Fault(malformed_sse=True), ModelProtocolError, "malformed event stream"),
        (Fault(cut_after_bytes=0), ModelUnavailable, "ClientPayloadError"),
        (Fault(cut_after_bytes=600), ModelUnavailable, "ClientPayloadError"),
    ],
)
async def test_each_fault_has_its_class_and_its_words(api, fault, kind, words):
    async with ScriptedServer([STEP], {0: fault}) as server:
        with pytest.raises(kind, match=words) as caught:
            await ask(server, api)

    assert type(caught.value) is kind
    assert len(str(caught.value)) <= 520
    assert len(server.requests) == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_summary_is_words_though_the_script_would_use_a_tool(api):
    step = ScriptedStep.model_validate({"text": "A summary.", "tool_calls": [{"name": "exec"}]})
    tools = (Tool("exec", "Run.", {"type": "object"}),)
    async with ScriptedServer([step]) as server:
        *_, answered = await ask(server, api, replace(REQUEST, tools=tools))
        *_, summed_up = await ask(server, api, replace(REQUEST, tools=tools, purpose="summary"))

    assert [type(block) for block in answered.blocks] == [Text, ToolUse]
    assert summed_up.blocks == (Text("A summary."),)


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_that_does_not_come_is_given_up_at_the_deadline(api):
    async with ScriptedServer([STEP], {0: Fault(hang=True)}) as server:
        with pytest.raises(ModelUnavailable, match="no complete answer within 1 s"):
            await ask(server, api, timeout_seconds=1)

        async with asyncio.timeout(60):
            await server.left_early.wait()


async def test_a_deadline_counts_the_whole_answer_however_lively():
    async with ScriptedServer([ScriptedStep(text="w " * 100, chunk_milliseconds=50)]) as server:
        with pytest.raises(ModelUnavailable, match="no complete answer within 1 s"):
            await ask(server, "AnthropicMessages", timeout_seconds=1)


@pytest.mark.parametrize("api", APIS)
async def test_leaving_the_stream_closes_the_request(api):
    async with ScriptedServer([ScriptedStep(text="w " * 1000, chunk_milliseconds=20)]) as server:
        async with model(server, api) as one, aclosing(one.stream(REQUEST)) as events:
            async for _ in events:
                break

        async with asyncio.timeout(60):
            await server.left_early.wait()


@pytest.mark.parametrize("api", APIS)
async def test_the_key_never_comes_back_out(api, tmp_path):
    wrong = tmp_path / "key"
    wrong.write_text("sk-wrong-9876543210")
    async with ScriptedServer([STEP], key=KEY) as server:
        with pytest.raises(ModelAuthentication) as caught:
            await ask(server, api, key_file=wrong)

    assert str(caught.value) == "HTTP 401: Incorrect API key provided: [key]"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("content", ["", "two words", "line\nbreak", "schlüssel", b"\xff"])
async def test_a_key_that_no_header_can_carry_is_refused_before_any_request(content, tmp_path):
    file = tmp_path / "key"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    async with ScriptedServer([STEP]) as server:
        with pytest.raises(ModelAuthentication):
            await ask(server, "AnthropicMessages", key_file=file)

    assert server.requests == []


async def test_a_key_file_that_is_gone_is_a_matter_of_authentication(tmp_path):
    async with ScriptedServer([STEP]) as server:
        with pytest.raises(ModelAuthentication, match="FileNotFoundError"):
            await ask(server, "AnthropicMessages", key_file=tmp_path / "none")


async def test_a_key_is_read_anew_for_each_request(key_file):
    async with (
        ScriptedServer([STEP], key=KEY) as server,
        model(server, "OpenAIChatCompletions", key_file=key_file) as one,
    ):
        key_file.write_text("sk-wrong")
        with pytest.raises(ModelAuthentication):
            await anext(one.stream(REQUEST))
        key_file.write_text(KEY)
        assert [event async for event in one.stream(REQUEST)]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None), ("", None)],
)
async def test_retry_after_is_read_in_both_its_forms(header, seconds):
    async with ScriptedServer([STEP], {0: Fault(status=429, retry_after=header)}) as server:
        with pytest.raises(ModelUnavailable) as caught:
            await ask(server, "AnthropicMessages")

    assert caught.value.retry_after_seconds == seconds


async def test_usage_reported_before_a_break_is_not_lost():
    async with ScriptedServer([STEP], {0: Fault(cut_after_bytes=600)}) as server:
        with pytest.raises(ModelUnavailable) as caught:
            await ask(server, "AnthropicMessages")

    assert caught.value.usage.input_tokens > 0


async def test_an_answer_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "MAX_RESPONSE_BYTES", 500)
    async with ScriptedServer([STEP]) as server:
        with pytest.raises(ModelProtocolError, match="exceeds 500 bytes"):
            await ask(server, "AnthropicMessages")


async def test_a_provider_that_is_not_there_is_unavailable():
    async with ScriptedServer([STEP]) as server:
        pass

    with pytest.raises(ModelUnavailable):
        await ask(server, "AnthropicMessages")


async def test_a_connection_that_does_not_come_about_is_not_told_as_a_slow_answer(monkeypatch):
    monkeypatch.setattr(wire, "CONNECT_SECONDS", 0.2)
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # holds one connection that nobody accepts, and passes over the next
        first.connect(full.getsockname())
        base_url = f"http://127.0.0.1:{full.getsockname()[1]}"
        given = Model(api="AnthropicMessages", provider="p", name="m", base_url=base_url)
        async with open_session() as session:
            with pytest.raises(ModelUnavailable, match=r"no connection within 0\.2 s"):
                await anext(model_for(given, session, None).stream(REQUEST))


async def test_the_server_answers_in_one_piece_too():
    step = ScriptedStep.model_validate({"text": "x", "tool_calls": [{"name": "exec", "arguments": {"a": 1}}]})
    async with ScriptedServer([step]) as server, aiohttp.ClientSession() as session:
        body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Go."}]}]}
        async with session.post(f"{server.url}/v1/messages", json=body) as response:
            message = await response.json()
        body["messages"][0]["content"] = "Go."
        async with session.post(f"{server.openai_url}/chat/completions", json=body) as response:
            completion = await response.json()

    assert message["content"][1]["input"] == {"a": 1}
    assert completion["choices"][0]["finish_reason"] == "tool_calls"
