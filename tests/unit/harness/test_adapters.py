"""The adapters read streams as the providers' own SDKs do: both parse the same bytes, and must agree.

The SDKs get their bytes from a mock transport; there is no network here.
"""

import json
from contextlib import suppress

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towline.api.snapshot import Model, ScriptedStep
from towline.harness.models import anthropic as anthropic_adapter
from towline.harness.models import openai_chat as openai_adapter
from towline.harness.models.base import (
    Finished,
    ModelProtocolError,
    ModelUnavailable,
    Request,
    TextDelta,
    ThinkingDelta,
    Tool,
    Usage,
)
from towline.harness.models.scripted import Scripted, words
from towline.harness.models.sse import ServerSentEvent, SseParser
from towline.harness.transcript import AssistantMessage, Native, Text, Thinking, ToolResult, ToolUse, UserMessage
from towline.testing.provider_rules import anthropic_problems, openai_problems
from towline.testing.scripted_wire import Answer, anthropic_events, openai_chunks, signature

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["exec", "read_file"]), "arguments": st.dictionaries(TEXT, JSON, max_size=3)}
    ),
    max_size=3,
)
STEPS = st.builds(
    ScriptedStep.model_validate, st.fixed_dictionaries({"text": TEXT, "thinking": TEXT, "tool_calls": CALLS})
)


def answer(step, **faults):
    return Answer(step, index=1, input_tokens=11, model="model", **faults)


def anthropic_stream(*events):
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def openai_stream(*chunks, done=True):
    datas = [json.dumps(chunk) for chunk in chunks] + (["[DONE]"] if done else [])
    return "".join(f"data: {data}\n\n" for data in datas).encode()


def ours(adapter, raw):
    """Our answer to a stream, and the deltas that were shown of it."""
    assembled = adapter.Answer("msg_00000000000a")
    deltas = [delta for event in SseParser(1 << 20).feed(raw) for delta in assembled.take(event)]
    return assembled.finished(), deltas


def transport(raw):
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=raw)))


def anthropic_sdk(raw):
    with transport(raw) as client:
        sdk = anthropic.Anthropic(api_key="none", http_client=client, max_retries=0)
        with sdk.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]) as stream:
            return stream.get_final_message()


def openai_sdk(raw):
    with transport(raw) as client:
        sdk = openai.OpenAI(api_key="none", http_client=client, max_retries=0)
        with sdk.chat.completions.stream(model="m", messages=[{"role": "user", "content": "x"}]) as stream:
            return stream.get_final_completion()


@settings(max_examples=60)
@given(STEPS)
def test_an_anthropic_stream_means_what_the_sdk_says_it_means(step):
    raw = anthropic_stream(*anthropic_events(answer(step)))
    theirs = anthropic_sdk(raw)

    finished, deltas = ours(anthropic_adapter, raw)

    expected = []
    for block in theirs.content:
        match block.type:
            case "text":
                expected.append(Text(block.text))
            case "thinking":
                expected.append(Thinking(block.thinking, block.to_dict()))
            case "tool_use":
                expected.append((block.id, block.name, block.input))
    assert comparable(finished) == expected
    assert finished.stop_reason == theirs.stop_reason
    assert finished.usage == Usage(theirs.usage.input_tokens, theirs.usage.output_tokens)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == step.text
    assert "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta)) == step.thinking


@settings(max_examples=60)
@given(STEPS)
def test_an_openai_stream_means_what_the_sdk_says_it_means(step):
    raw = openai_stream(*openai_chunks(answer(step), usage=True))
    theirs = openai_sdk(raw)

    finished, deltas = ours(openai_adapter, raw)

    message = theirs.choices[0].message
    expected = [Thinking(step.thinking, {"reasoning_content": step.thinking})] if step.thinking else []
    expected += [Text(message.content)] if message.content else []
    expected += [
        (call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []
    ]
    assert comparable(finished) == expected
    assert finished.stop_reason == openai_adapter.STOP_REASONS[theirs.choices[0].finish_reason]
    assert finished.usage == Usage(theirs.usage.prompt_tokens, theirs.usage.completion_tokens)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == step.text


def comparable(finished):
    """Blocks with the provider's call ids in the place of ours."""
    return [
        (block.provider_id, block.name, block.arguments) if isinstance(block, ToolUse) else block
        for block in finished.blocks
    ]


CALL = ScriptedStep.model_validate({"tool_calls": [{"name": "exec", "arguments": {"command": "ls"}}] * 2})


@pytest.mark.parametrize(
    ("adapter", "raw"),
    [
        (anthropic_adapter, anthropic_stream(*anthropic_events(answer(CALL, duplicate_call_ids=True)))),
        (openai_adapter, openai_stream(*openai_chunks(answer(CALL, duplicate_call_ids=True), usage=True))),
    ],
)
def test_tool_uses_that_share_a_provider_id_stay_two(adapter, raw):
    first, second = ours(adapter, raw)[0].blocks

    assert first.provider_id == second.provider_id
    assert (first.call_id, second.call_id) == ("tc_00000000000a_0", "tc_00000000000a_1")


@pytest.mark.parametrize(
    ("adapter", "raw"),
    [
        (anthropic_adapter, anthropic_stream(*anthropic_events(answer(CALL, bad_arguments=True)))),
        (openai_adapter, openai_stream(*openai_chunks(answer(CALL, bad_arguments=True), usage=True))),
    ],
)
def test_arguments_that_break_off_are_kept_as_text(adapter, raw):
    use = ours(adapter, raw)[0].blocks[0]

    assert (use.arguments, use.unparsable) == (None, '{"command": "echo')


STEP = ScriptedStep(text="One two three")


@pytest.mark.parametrize(
    ("adapter", "raw"),
    [
        (anthropic_adapter, anthropic_stream(*list(anthropic_events(answer(STEP)))[:-1])),
        (anthropic_adapter, b""),
        (openai_adapter, openai_stream(*list(openai_chunks(answer(STEP), usage=False))[:-1], done=False)),
        (openai_adapter, b""),
    ],
)
def test_a_stream_that_ends_early_is_unavailable_not_an_answer(adapter, raw):
    with pytest.raises(ModelUnavailable):
        ours(adapter, raw)


@pytest.mark.parametrize("adapter", [anthropic_adapter, openai_adapter])
@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[]",
        "null",
        '"text"',
        '{"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}}',
        '{"type": "message_start"}',
        '{"choices": [{"delta": {"tool_calls": [7]}}]}',
        '{"choices": 7}',
        "[" * 100_000,
    ],
)
def test_an_event_of_another_shape_is_a_protocol_error_or_nothing(adapter, data):
    assembled = adapter.Answer("msg_a")

    with suppress(ModelProtocolError):
        assert assembled.take(ServerSentEvent("message", data)) == []


def test_anthropic_usage_counts_cached_input_and_takes_the_last_word():
    start = {"usage": {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100}}
    end = {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9, "input_tokens": None}}
    raw = anthropic_stream(
        {"type": "message_start", "message": start}, {"type": "message_delta", **end}, {"type": "message_stop"}
    )

    assert ours(anthropic_adapter, raw)[0].usage == Usage(125, 9, 100)


def test_anthropic_blocks_of_other_kinds_are_kept_verbatim():
    redacted = {"type": "redacted_thinking", "data": "opaque"}
    server_use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"query": "x"}'}
    raw = anthropic_stream(
        {"type": "content_block_start", "index": 0, "content_block": redacted},
        {"type": "content_block_start", "index": 1, "content_block": server_use},
        {"type": "content_block_delta", "index": 1, "delta": delta},
        {"type": "message_stop"},
    )

    assert ours(anthropic_adapter, raw)[0].blocks == (
        Thinking("", redacted),
        Native({**server_use, "input": {"query": "x"}}),
    )


def openai_delta(delta, finish_reason=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}


def call_delta(arguments, **more):
    return {**more, "function": {"name": more.pop("name", None), "arguments": arguments}}


@pytest.mark.parametrize(
    "chunks",
    [
        [  # every call numbered 0 (some Ollama versions)
            openai_delta({"tool_calls": [call_delta('{"a": 1}', index=0, id="x", name="exec")]}),
            openai_delta({"tool_calls": [call_delta('{"a": 2}', index=0, id="y", name="exec")]}),
        ],
        [  # no index at all (Gemini's compatible endpoint)
            openai_delta({"tool_calls": [call_delta('{"a": 1}', id="x", name="exec")]}),
            openai_delta({"tool_calls": [call_delta('{"a": 2}', id="y", name="exec")]}),
        ],
        [  # no ids, both at once
            openai_delta(
                {
                    "tool_calls": [
                        call_delta('{"a": 1}', index=0, name="exec"),
                        call_delta('{"a": 2}', index=1, name="exec"),
                    ]
                }
            ),
        ],
        [  # arguments as an object instead of text
            openai_delta(
                {
                    "tool_calls": [
                        call_delta({"a": 1}, index=0, id="x", name="exec"),
                        call_delta({"a": 2}, index=1, id="y", name="exec"),
                    ]
                }
            ),
        ],
    ],
)
def test_tool_calls_of_lenient_servers_are_understood(chunks):
    raw = openai_stream(*chunks, openai_delta({}, "tool_calls"), done=False)

    finished, _ = ours(openai_adapter, raw)

    assert [(use.name, use.arguments) for use in finished.blocks] == [("exec", {"a": 1}), ("exec", {"a": 2})]
    assert finished.usage == Usage()


def test_a_tool_call_that_arrives_tells_that_the_answer_has_begun():
    chunk = openai_delta({"tool_calls": [call_delta('{"a"', index=0, id="x", name="exec")]})

    assert openai_adapter.Answer("msg_a").take(ServerSentEvent("message", json.dumps(chunk))) == [Usage()]


@pytest.mark.parametrize(
    ("finish_reason", "delta", "stop_reason"),
    [
        ("stop", {"content": "x"}, "end_turn"),
        ("length", {"content": "x"}, "max_tokens"),
        ("content_filter", {"content": "x"}, "refusal"),
        ("stop", {"refusal": "No."}, "refusal"),
        ("something_new", {"content": "x"}, "something_new"),
    ],
)
def test_openai_finish_reasons_become_neutral(finish_reason, delta, stop_reason):
    finished, _ = ours(openai_adapter, openai_stream(openai_delta(delta), openai_delta({}, finish_reason)))

    assert finished.stop_reason == stop_reason


def test_an_error_inside_an_openai_stream_is_kept_in_its_words():
    assembled = openai_adapter.Answer("msg_a")

    assembled.take(ServerSentEvent("message", '{"error": {"message": "overloaded", "code": 503}}'))

    assert assembled.error == "overloaded"


TOOLS = (Tool("exec", "Run.", {"type": "object"}), Tool("read_file", "Read.", {"type": "object"}))
THINKING = Thinking("hm", {"type": "thinking", "thinking": "hm", "signature": signature("hm")})
CONVERSATION = (
    UserMessage("Go."),
    AssistantMessage(
        "msg_a",
        (THINKING, Text("Two."), ToolUse("tc_a_0", "exec", {"command": "ls"}), ToolUse("tc_a_1", "a tool", None, "{")),
        "tool_use",
        {"tc_a_1": ToolResult("tc_a_1", "no", is_error=True), "tc_a_0": ToolResult("tc_a_0", "")},
    ),
    UserMessage("More."),
)


def test_the_anthropic_body_is_written_out_here():
    model = Model(api="AnthropicMessages", provider="p", name="claude", max_output_tokens=100)

    body = anthropic_adapter.body(model, Request("msg_b", "Be brief.", CONVERSATION, TOOLS))

    cached = {"cache_control": {"type": "ephemeral"}}
    assert body == {
        "model": "claude",
        "max_tokens": 100,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief.", **cached}],
        "tools": [
            {"name": "exec", "description": "Run.", "input_schema": {"type": "object"}},
            {"name": "read_file", "description": "Read.", "input_schema": {"type": "object"}, **cached},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Go."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": signature("hm")},
                    {"type": "text", "text": "Two."},
                    {"type": "tool_use", "id": "tc_a_0", "name": "exec", "input": {"command": "ls"}},
                    {"type": "tool_use", "id": "tc_a_1", "name": "a_tool", "input": {"unparsable_arguments": "{"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "tc_a_0", "is_error": False},
                    {
                        "type": "tool_result",
                        "tool_use_id": "tc_a_1",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no"}],
                    },
                    {"type": "text", "text": "More.", **cached},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("text", "is_error", "content"),
    [
        ("\n", False, None),
        ("", True, [{"type": "text", "text": "(no output)"}]),
        (" \n", True, [{"type": "text", "text": "(no output)"}]),
        (" x\n", True, [{"type": "text", "text": " x\n"}]),
    ],
)
def test_a_result_without_words_goes_to_anthropic_as_it_may(text, is_error, content):
    model = Model(api="AnthropicMessages", provider="p", name="claude")
    results = {"tc_a_0": ToolResult("tc_a_0", text, is_error)}
    called = AssistantMessage("msg_a", (ToolUse("tc_a_0", "exec", {}),), "tool_use", results)

    body = anthropic_adapter.body(model, Request("msg_b", " \n", (UserMessage("a"), called), TOOLS))

    [result] = body["messages"][2]["content"]
    assert result.get("content") == content
    assert anthropic_problems(body) == []


def test_the_openai_body_is_written_out_here():
    model = Model(api="OpenAIChatCompletions", provider="p", name="gpt", max_output_tokens=100)

    body = openai_adapter.body(model, Request("msg_b", "Be brief.", CONVERSATION, TOOLS[:1]))

    calls = [("tc_a_0", "exec", '{"command": "ls"}'), ("tc_a_1", "a_tool", '{"unparsable_arguments": "{"}')]
    assert body == {
        "model": "gpt",
        "max_completion_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {"type": "function", "function": {"name": "exec", "description": "Run.", "parameters": {"type": "object"}}}
        ],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": "Two.",
                "tool_calls": [
                    {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                    for id_, name, arguments in calls
                ],
            },
            {"role": "tool", "tool_call_id": "tc_a_0", "content": ""},
            {"role": "tool", "tool_call_id": "tc_a_1", "content": "no"},
            {"role": "user", "content": "More."},
        ],
    }


@pytest.mark.parametrize(
    ("adapter", "problems", "choice"),
    [(anthropic_adapter, anthropic_problems, {"type": "none"}), (openai_adapter, openai_problems, "none")],
)
def test_a_summary_may_use_no_tool_that_is_offered(adapter, problems, choice):
    model = Model(api="AnthropicMessages", provider="p", name="m")

    def body(purpose, tools):
        return adapter.body(model, Request("msg_b", "", CONVERSATION, tools, purpose=purpose))

    assert body("summary", TOOLS)["tool_choice"] == choice
    assert body("summary", TOOLS)["tools"] == body("answer", TOOLS)["tools"]
    for one in (body("summary", ()), body("answer", TOOLS)):
        assert "tool_choice" not in one
    assert problems(body("summary", TOOLS)) == problems(body("summary", ())) == []
    assert problems({**body("summary", ()), "tool_choice": choice}) == ["tool_choice: only allowed beside tools"]


def test_servers_other_than_openai_get_the_older_name_of_the_output_limit():
    model = Model(api="OpenAIChatCompletions", provider="p", name="m", base_url="http://vllm.local/v1")

    body = openai_adapter.body(model, Request("msg_b", "", (UserMessage("Go."),), ()))

    assert body["max_tokens"] == 8192
    assert "max_completion_tokens" not in body


def test_unsigned_thinking_of_another_provider_does_not_go_to_anthropic():
    model = Model(api="AnthropicMessages", provider="p", name="claude")
    thought = AssistantMessage("msg_a", (Thinking("hm", {"reasoning_content": "hm"}), Text("x")))

    body = anthropic_adapter.body(model, Request("msg_b", "", (UserMessage("a"), thought, UserMessage("b")), ()))

    assert body["messages"][1]["content"] == [{"type": "text", "text": "x"}]


async def test_the_scripted_model_takes_the_step_that_the_history_has_come_to():
    script = [{"text": "first"}, {"text": "two words", "tool_calls": [{"name": "exec", "arguments": {"a": 1}}]}]
    model = Scripted(Model(api="Scripted", provider="p", name="s", script=script))
    history = (UserMessage("a b c"), AssistantMessage("msg_a", (Text("first"),)), UserMessage("d"))

    events = [event async for event in model.stream(Request("msg_00000000000b", "", history, (), 1))]

    assert events == [
        Usage(5),
        TextDelta("two "),
        TextDelta("words"),
        Finished((Text("two words"), ToolUse("tc_00000000000b_0", "exec", {"a": 1})), "tool_use", Usage(5, 2)),
    ]


async def test_an_exhausted_script_says_so_in_a_final_answer():
    model = Scripted(Model(api="Scripted", provider="p", name="s"))

    *_, finished = [event async for event in model.stream(Request("msg_a", "", (UserMessage("a"),), ()))]

    assert finished.blocks == (Text("The script has no further step."),)
    assert finished.stop_reason == "end_turn"


@given(TEXT)
def test_words_join_to_the_text_they_came_from(text):
    assert "".join(words(text)) == text
    assert "" not in words(text)
