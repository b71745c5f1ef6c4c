"""One call to the tool server and its result back, across broken connections.

`calls.py` calls it for a dispatched call and bounds the time. The tool server runs a call id once and keeps its result,
so asking the same tool server again is safe; asking another one is not, and never happens.
"""

import asyncio
from typing import Any

from towline.errors import SandboxFailed
from towline.events.calls import Call
from towline.gateway.exchange import ToolRequest
from towline.gateway.lease import Lease, ProvedSandbox
from towline.gateway.result import Reply
from towline.gateway.sandbox_client import OnOutput
from towline.gateway.strict_json import canonical
from towline.gateway.tools import whole_numbers

PAUSES_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Before each further try. A tool server that drops five connections in a row is as good as gone."""

_ASK_AGAIN = ("Unreachable", "Unauthorized", "Overloaded", "Closed")
"""The last is our own doing: the record names another sandbox or address by now, and says what became of this one."""


def order(request: ToolRequest, timeout_seconds: int) -> bytes:
    """The body of the call; the same bytes on every gateway, for the tool server compares them on a repeat."""
    body: dict[str, Any] = {
        "tool": request.name,
        "arguments": whole_numbers(request.arguments),
        "timeout_seconds": timeout_seconds,
    }
    return canonical(body)


async def forward(lease: Lease, sandbox: ProvedSandbox, call: Call, body: bytes, on_output: OnOutput) -> Reply:
    """The tool server's result; raises SandboxFailed when there will be none."""
    for pause in (*PAUSES_SECONDS, None):
        try:
            reply = await sandbox.client.run(
                call.instance, call.call_id, body, on_output, acknowledged=lease.acknowledged()
            )
        except SandboxFailed as fault:
            lease.doubt()
            if fault.reason not in _ASK_AGAIN or pause is None:
                raise
        else:
            sandbox.heard = asyncio.get_running_loop().time()
            return reply
        await asyncio.sleep(pause)
        sandbox = await lease.sandbox_of(call)
    raise AssertionError("the last try returns or raises")
