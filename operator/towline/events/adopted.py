"""Tool calls whose results a harness has taken over: what it keeps to put them back, should the store lose them.

The gateway tells it beside each result (`record_of`), so small that the text and the arguments, which the harness has
anyway, are left out; the harness makes the events of it again (`adopted`), byte for byte. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from towline.errors import Invalid
from towline.events.event import Draft, to_json

MAX_UNPARSABLE_CHARACTERS = 4096
"""How much of a broken argument text is recorded, in the harness' agent.message as in the gateway's agent.tool_use:
enough for a model to recognise its mistake."""


@dataclass(slots=True)
class Adopted:
    """A settled call: its events, from agent.tool_use to agent.tool_result, and the seqs of these two."""

    call_id: str
    name: str
    args_hash: str
    drafts: tuple[Draft, ...]
    first: int
    last: int

    @property
    def result_id(self) -> str:
        """Id of the event at `last`."""
        return self.drafts[-1].id

    @property
    def bytes(self) -> int:
        return sum(len(draft.data) for draft in self.drafts)


def use_data(
    call_id: str, name: str, arguments: Mapping[str, Any], decision: Mapping[str, Any], unparsable: str | None
) -> dict[str, Any]:
    """Data of a call's agent.tool_use."""
    data = {"call_id": call_id, "name": name, "input": arguments, "decision": decision}
    if unparsable is not None:
        data["input_text"] = unparsable[:MAX_UNPARSABLE_CHARACTERS]
    return data


def denied_data(call_id: str, name: str, rule: str, message: str) -> dict[str, Any]:
    """Data of policy.denied; the message is the text of the result."""
    return {"call_id": call_id, "name": name, "rule": rule, "message": message}


def record_of(
    args_hash: str, first: int, last: int, events: Sequence[tuple[str, str, str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """What the gateway tells of a call's events, each given as id, type, time, data; `first` and `last` are seqs."""
    return {
        "args_hash": args_hash,
        "seq": [first, last],
        "events": [
            {"id": event_id, "type": type, "time": time, **{key: data[key] for key in _TOLD[type] if key in data}}
            for event_id, type, time, data in events
            if type in _TOLD
        ],
    }


_TOLD = {
    "agent.tool_use": ("decision",),
    "policy.denied": ("rule",),
    "agent.tool_result": ("duration_ms", "truncated", "total_bytes", "exit_code"),
}
"""Of each event's data, what the caller does not know."""


def adopted(
    record: Mapping[str, Any],
    *,
    call_id: str,
    name: str,
    arguments: Mapping[str, Any],
    unparsable: str | None,
    outcome: str,
    text: str,
) -> Adopted:
    """The call behind a result, as the gateway's record and the caller's own knowledge tell it; raises Invalid."""
    try:
        drafts = []
        for told in record["events"]:
            match told["type"]:
                case "agent.tool_use":
                    data = use_data(call_id, name, arguments, told["decision"], unparsable)
                case "policy.denied":
                    data = denied_data(call_id, name, told["rule"], text)
                case _:
                    result: dict[str, Any] = {"call_id": call_id, "name": name, "outcome": outcome}
                    result |= {"is_error": outcome != "ok", "content": [{"type": "text", "text": text}]}
                    data = result | {key: told[key] for key in _TOLD["agent.tool_result"]}
            drafts.append(Draft(told["id"], told["type"], told["time"], to_json(data)))
        first, last = record["seq"]
        return Adopted(call_id, name, record["args_hash"], tuple(drafts), first, last)
    except (KeyError, TypeError, ValueError) as fault:
        raise Invalid(f"record of call {call_id}: {type(fault).__name__} {fault}") from None
