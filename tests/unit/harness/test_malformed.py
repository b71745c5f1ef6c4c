"""Whatever a provider sends, a harness sees an answer that it can record, or a fault: nothing crashes it."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towline.api.snapshot import ScriptedStep
from towline.harness.asking import recordable
from towline.harness.models import anthropic as anthropic_adapter
from towline.harness.models import openai_chat as openai_adapter
from towline.harness.models.base import ModelFault, ModelProtocolError
from towline.harness.models.sse import ServerSentEvent
from towline.testing.scripted_wire import Answer, anthropic_events, openai_chunks

ANTHROPIC_MALFORMED = [
    '{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": 7}}',
    '{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ["x"]}}',
    '{"type": "content_block_start", "index": "0", "content_block": {"type": "text", "text": "x"}}',
    '{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "x", "input": {}}}',
    '{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "x", "name": ["y"]}}',
    '{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": 7, "name": "y"}}',
    '{"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": 7}}',
    '{"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": ["x"]}}',
    '{"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": {}}}',
    '{"type": "content_block_delta", "index": 1, "delta": {"type": "signature_delta", "signature": 7}}',
    '{"type": "message_delta", "delta": {"stop_reason": ["end_turn"]}}',
    '{"type": "message_delta", "delta": {"stop_reason": {"a": 1}}}',
    '{"type": "message_delta", "delta": {}, "usage": {"output_tokens": 1e999}}',
    '{"type": "message_delta", "delta": {}, "usage": {"output_tokens": -7}}',
    '{"type": "message_delta", "delta": {}, "usage": [7]}',
    '{"type": "error", "error": "overloaded"}',
]
OPENAI_MALFORMED = [
    *(
        json.dumps({"choices": [{"delta": {key: value}}]})
        for key in ("content", "reasoning_content", "refusal")
        for value in (7, ["x"], {"a": 1})
    ),
    '{"choices": [{"delta": {"tool_calls": [{"id": 7, "function": {"name": "exec"}}]}}]}',
    '{"choices": [{"delta": {"tool_calls": [{"id": "x", "function": {"name": ["exec"]}}]}}]}',
    '{"choices": [{"delta": {"tool_calls": [{"id": "x", "function": "exec"}]}}]}',
    '{"choices": [{"delta": {}, "finish_reason": ["stop"]}]}',
    '{"choices": [{"delta": {}, "finish_reason": {"a": 1}}]}',
    '{"choices": [], "usage": {"prompt_tokens": 1e999}}',
    '{"choices": [], "usage": {"prompt_tokens": -7}}',
    json.dumps({"choices": [], "usage": {"completion_tokens": 10**400}}),
    '{"choices": [], "usage": [7]}',
]
ANTHROPIC_OPEN = '{"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}'
ENDS = {
    anthropic_adapter: ['{"type": "message_stop"}'],
    openai_adapter: ['{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}', "[DONE]"],
}


def assembled(adapter, datas):
    """The answer that these events make, whatever they hold."""
    answer = adapter.Answer("msg_00000000000a")
    for data in datas:
        answer.take(ServerSentEvent("message", data))
    return answer.finished()


@pytest.mark.parametrize(
    ("adapter", "datas"),
    [
        *((anthropic_adapter, [ANTHROPIC_OPEN, data]) for data in ANTHROPIC_MALFORMED),
        *((openai_adapter, [data]) for data in OPENAI_MALFORMED),
    ],
)
def test_a_malformed_answer_is_a_protocol_error(adapter, datas):
    with pytest.raises(ModelProtocolError, match="malformed"):
        assembled(adapter, [*datas, *ENDS[adapter]])


ANY = st.recursive(
    st.sampled_from([None, True, -1, 7, 10**400, 1e400, float("nan"), "", "x", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def spoilt(draw, events):
    """The events of a good answer, some with a part replaced by anything, or left out."""
    broken = []
    for event in events:
        event = json.loads(json.dumps(event))
        for _ in range(draw(st.integers(0, 1))):
            at = event
            while True:
                key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
                if isinstance(at[key], dict | list) and at[key] and draw(st.integers(0, 3)):
                    at = at[key]
                    continue
                if draw(st.booleans()):
                    at[key] = draw(ANY)
                else:
                    del at[key]
                break
        broken.append(json.dumps(event))
    return broken


STEP = ScriptedStep.model_validate({"text": "One two", "thinking": "Hm.", "tool_calls": [{"name": "exec"}]})
GOOD = Answer(STEP, index=1, input_tokens=11, model="model")


@settings(max_examples=300)
@given(spoilt(list(anthropic_events(GOOD))))
def test_any_anthropic_stream_ends_in_an_answer_or_a_fault(datas):
    with suppress(ModelFault):
        assert recordable("msg_a", assembled(anthropic_adapter, [*datas, *ENDS[anthropic_adapter]]))


@settings(max_examples=300)
@given(spoilt(list(openai_chunks(GOOD, usage=True))))
def test_any_openai_stream_ends_in_an_answer_or_a_fault(datas):
    with suppress(ModelFault):
        assert recordable("msg_a", assembled(openai_adapter, [*datas, *ENDS[openai_adapter]]))
