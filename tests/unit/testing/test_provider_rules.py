"""The rules see what the providers were seen to refuse."""

import pytest

from towline.testing.provider_rules import anthropic_problems

GO = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
CALLS = {"role": "assistant", "content": [{"type": "tool_use", "id": "tc_a_0", "name": "exec", "input": {}}]}


def body(*content, is_error=False, **more):
    result = {"type": "tool_result", "tool_use_id": "tc_a_0", "is_error": is_error, "content": list(content)}
    return {"messages": [GO, CALLS, {"role": "user", "content": [result]}], **more}


TEXT = {"type": "text", "text": "out"}
BLANK = {"type": "text", "text": "\n"}


@pytest.mark.parametrize(
    ("sent", "problems"),
    [
        (body(TEXT), []),
        (body(), []),
        (body(BLANK), ["messages.2: text must hold more than white space"]),
        (body(is_error=True), ["messages.2: a tool result that is an error needs content"]),
        (body(TEXT, system=[BLANK]), ["system: text must hold more than white space"]),
    ],
)
def test_blank_texts_and_errors_without_words_are_refused_by_anthropic(sent, problems):
    assert anthropic_problems(sent) == problems
