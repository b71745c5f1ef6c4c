"""What a caller is told when there is no result: one table from our errors to JSON-RPC and HTTP, for both faces.

A refused call is not a failed call: nothing was decided about it, or nothing may be recorded any more. `data.reason` is
what a harness acts on. Pure.
"""

from dataclasses import dataclass
from typing import Any

from towline.errors import CallMismatch, Fenced, Invalid, LogClosed, RunCancelled, StoreLost, StoreUnavailable
from towline.gateway.bound_run import UnknownRun
from towline.gateway.limits import Busy

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED = -32040
"""In the range JSON-RPC leaves to implementations, clear of the codes MCP has taken."""

_REASONS: dict[type[Exception], str] = {
    Fenced: "Fenced",
    LogClosed: "LogClosed",
    RunCancelled: "Cancelled",
    CallMismatch: "CallMismatch",
    UnknownRun: "UnknownRun",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A JSON-RPC error and the HTTP status that goes with it. `retry_after` in seconds, where a retry may help."""

    code: int
    message: str
    data: dict[str, Any] | None = None
    status: int = 200
    retry_after: int | None = None

    def error(self) -> dict[str, Any]:
        """The JSON-RPC error object."""
        return {"code": self.code, "message": self.message, **({"data": self.data} if self.data else {})}


def refusal(fault: Exception) -> Refusal | None:
    """What to answer; None for a fault that is our own mistake and nobody's business but the log's."""
    if isinstance(fault, Invalid):
        return Refusal(INVALID_PARAMS, str(fault), status=400)
    if isinstance(fault, StoreUnavailable):
        return Refusal(REFUSED, "the event store is away", {"reason": "StoreUnavailable"}, 503, retry_after=1)
    if isinstance(fault, StoreLost):
        data = {"reason": "StoreLost", **({"dispatched": fault.dispatched} if fault.dispatched else {})}
        return Refusal(REFUSED, str(fault), data, 503, retry_after=1)
    if isinstance(fault, Busy):
        status = 429 if fault.run else 503
        return Refusal(REFUSED, str(fault), {"reason": "Busy"}, status, retry_after=fault.seconds)
    reason = _REASONS.get(type(fault))
    return Refusal(REFUSED, str(fault), {"reason": reason}) if reason else None
