from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towline.errors import SandboxFailed
from towline.events.calls import Call
from towline.gateway.exchange import ToolRequest
from towline.gateway.forward import forward, order
from towline.gateway.lease import ProvedSandbox
from towline.gateway.result import Reply
from towline.gateway.strict_json import canonical, loads
from towline.toolserver.protocol import parse_body

TEXT = st.text()
ARGUMENTS = st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.lists(TEXT, max_size=3), max_size=5)


@given(ARGUMENTS)
def test_the_tool_server_reads_exactly_the_arguments_that_the_policy_saw(arguments):
    """A request parsed twice by two parsers is how a check is walked around; here is one value and one spelling."""
    seen = loads(canonical({"params": {"arguments": arguments}}))["params"]["arguments"]

    body = parse_body(order(ToolRequest("tc_1", "exec", seen), 120))

    assert body == {"tool": "exec", "arguments": arguments, "timeout_seconds": 120}


def test_the_same_call_has_the_same_body_on_every_gateway():
    one = ToolRequest("tc_1", "exec", {"command": "ls", "cwd": "a"})
    two = ToolRequest("tc_1", "exec", {"cwd": "a", "command": "ls"})

    assert order(one, 5) == order(two, 5)


@dataclass
class Answering:
    """A client of a tool server that answers every call alike."""

    answer: Reply | SandboxFailed

    async def run(self, *_: Any, **__: Any) -> Reply:
        if isinstance(self.answer, SandboxFailed):
            raise self.answer
        return self.answer


@dataclass
class Leasing:
    """A lease that knows where the call is, or why it is nowhere."""

    now_at: ProvedSandbox | SandboxFailed

    async def sandbox_of(self, call: Call) -> ProvedSandbox:
        if isinstance(self.now_at, SandboxFailed):
            raise self.now_at
        return self.now_at

    def acknowledged(self) -> list[str]:
        return []

    def doubt(self) -> None: ...


def proved(answer: Reply | SandboxFailed) -> ProvedSandbox:
    client: Any = Answering(answer)
    return ProvedSandbox(client, "i", 0.0)


async def forwarded(now_at: ProvedSandbox | SandboxFailed) -> Reply:
    """The reply to a call whose connections were let go, as the record had changed."""
    lease: Any = Leasing(now_at)
    call = Call("tc_1", "exec", "a", "dispatched", "sandbox-1", "i")
    before = proved(SandboxFailed("Closed", "the connections to this sandbox were let go"))
    return await forward(lease, before, call, b"{}", lambda *_: None)


async def test_a_sandbox_that_is_recorded_at_another_address_is_asked_there():
    reply = Reply("ok", "hello")

    assert await forwarded(proved(reply)) == reply


async def test_of_a_sandbox_that_was_replaced_it_is_said_what_became_of_it():
    with pytest.raises(SandboxFailed, match="OOMKilled"):
        await forwarded(SandboxFailed("OOMKilled", "out of memory"))
