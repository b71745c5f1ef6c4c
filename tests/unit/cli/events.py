"""Events for the tests of the viewers: a small real run."""

import json
from typing import Any

from towline.events.event import Event, RunRef

RUN = RunRef("default", "3f2a77c0-1111-4222-8333-444455556666", "fix-a-bug")


def event(seq: int, type: str, data: dict[str, Any], *, seconds: float = 0.0) -> Event:
    """The event with `seq`, `seconds` after noon."""
    millis = round(seconds * 1000)
    time = f"2026-11-29T12:00:{millis // 1000:02d}.{millis % 1000:03d}Z"
    return Event(seq, f"ev_{seq:020x}", type, RUN, 1, time, "harness", 1, json.dumps(data).encode())


STORY = [
    event(1, "run.started", {"name": "fix-a-bug", "namespace": "default", "digest": "sha256:0"}),
    event(2, "harness.started", {"kind": "native", "version": "0.1.0", "epoch": 1}),
    event(3, "harness.sealed", {"filters": 1, "instructions": 90, "landlock_abi": 4}),
    event(4, "turn.started", {"prompt_ids": ["0-0"]}),
    event(5, "user.message", {"prompt_id": "0-0", "content": "Fix it.", "delivery": "queue", "sender": ""}),
    event(6, "span.model_request_start", {"message_id": "m1", "model": "demo"}),
    event(7, "agent.message_start", {"message_id": "m1"}),
    event(
        8,
        "agent.message",
        {
            "message_id": "m1",
            "content": [
                {"type": "text", "text": "I will run the tests.\n"},
                {
                    "type": "tool_use",
                    "call_id": "tc_1",
                    "name": "exec",
                    "input": {"command": "pytest"},
                    "provider_id": "x",
                },
            ],
            "stop_reason": "tool_use",
        },
        seconds=0.4,
    ),
    event(
        9,
        "span.model_request_end",
        {
            "message_id": "m1",
            "model": "demo",
            "usage": {"input_tokens": 1200, "output_tokens": 34, "cached_input_tokens": 0},
            "cost_micro_usd": 1500,
            "duration_ms": 400,
            "ttft_ms": 90,
            "error": None,
        },
        seconds=0.4,
    ),
    event(
        10,
        "agent.tool_use",
        {
            "call_id": "tc_1",
            "name": "exec",
            "input": {"command": "pytest -q", "timeout_seconds": 60},
            "decision": {"action": "Allow", "rule": "default"},
        },
        seconds=0.5,
    ),
    event(11, "sandbox.requested", {"call_id": "tc_1"}, seconds=0.5),
    event(12, "sandbox.ready", {"name": "s-1", "provider": "local", "start": "cold", "ms": 75}, seconds=0.6),
    event(
        13,
        "agent.tool_result",
        {
            "call_id": "tc_1",
            "name": "exec",
            "outcome": "ok",
            "is_error": False,
            "content": [{"type": "text", "text": "1 failed"}],
            "duration_ms": 310,
            "truncated": False,
            "total_bytes": 8,
            "exit_code": 1,
        },
        seconds=0.9,
    ),
    event(
        14,
        "agent.tool_result",
        {
            "call_id": "tc_2",
            "name": "write_file",
            "outcome": "error",
            "is_error": True,
            "content": [{"type": "text", "text": "path /etc/passwd leaves the workspace"}],
            "duration_ms": 2,
            "truncated": False,
            "total_bytes": 37,
            "exit_code": None,
        },
        seconds=0.95,
    ),
    event(15, "turn.retrying", {"reason": "overloaded", "attempt": 2, "delay_seconds": 1.5}, seconds=1.0),
    event(16, "harness.lost", {"epoch": 1, "reason": "Killed", "exit_code": None, "signal": 9}, seconds=1.1),
    event(17, "agent.message_start", {"message_id": "m2"}, seconds=1.2),
    event(
        18,
        "agent.message",
        {"message_id": "m2", "content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"},
        seconds=1.5,
    ),
    event(19, "turn.completed", {"stop_reason": "end_turn"}, seconds=1.5),
    event(
        20,
        "run.completed",
        {
            "result": {"text": "Done.", "truncated": False, "sha256": "0"},
            "usage": {"input_tokens": 1200, "output_tokens": 34, "cached_input_tokens": 0},
            "cost_micro_usd": 1500,
            "turns": 1,
            "tool_calls": 1,
        },
        seconds=1.5,
    ),
]
