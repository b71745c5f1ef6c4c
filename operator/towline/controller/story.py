"""What `kubectl describe` tells of a run: the sentences of its Kubernetes Events, from two of its statuses. Pure.

Called by `announce.py`. Events tell changes only, in the words of their reasons; the condition of that moment has the
same cause in its message. No text of a prompt, an answer or a tool is ever in one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from towline.clock import moment

Status = Mapping[str, Any]

ON_PURPOSE = ("Suspended", "Asleep")
"""What became of a harness that nobody lost."""

_HARNESS_QUIET = ("Starting", "Waking", "Restarting", "Released")
_SANDBOX_WARNINGS = {"Lost": "SandboxLost", "StartFailed": "SandboxStartFailed"}


@dataclass(frozen=True, slots=True)
class Announcement:
    reason: str
    note: str
    normal: bool = True


@dataclass(frozen=True, slots=True)
class _Change:
    """One condition, before and now, with the statuses around it."""

    was: tuple[str, str]
    status: str
    reason: str
    message: str
    old: Status
    new: Status


def announcements(old: Status, new: Status) -> list[Announcement]:
    """What is new between two statuses, in the order of the story."""
    before = {each["type"]: (each["status"], each["reason"]) for each in old.get("conditions") or ()}
    told = list(_losses(old, new))
    for each in new.get("conditions") or ():
        was = before.get(each["type"], ("Unknown", ""))
        change = _Change(was, each["status"], each["reason"], each["message"], old, new)
        tell = _TOLD.get(each["type"])
        another_pod = each["type"] == "HarnessReady" and _pod(old) != _pod(new)
        if tell is not None and (was != (each["status"], each["reason"]) or another_pod):
            told += tell(change)
    return told


def _losses(old: Status, new: Status) -> Iterator[Announcement]:
    known = max((each["epoch"] for each in old.get("attempts") or ()), default=0)
    for each in new.get("attempts") or ():
        if each["epoch"] > known and each.get("reason") not in ON_PURPOSE:
            crashed = (new.get("attempt") or 0) > (old.get("attempt") or 0)
            counts = "; it counts towards backoffLimit" if crashed else ""
            yield Announcement("HarnessLost", f"Pod {each['podName']} ended: {each['reason']}{counts}", False)


def _accepted(now: _Change) -> Iterator[Announcement]:
    if now.status == "True":
        yield Announcement("Accepted", "Found everything that the run refers to, and fixed it for this run")
    elif now.status == "False":
        yield Announcement(now.reason, now.message, False)


def _harness_ready(now: _Change) -> Iterator[Announcement]:
    if now.status == "True":
        yield Announcement("HarnessStarted", f"The harness runs in pod {_pod(now.new)}")
    elif now.reason == "Asleep":
        yield Announcement("Asleep", f"Nobody prompts: pod {_pod(now.new)} is released until somebody does")
    elif now.reason not in _HARNESS_QUIET:
        yield Announcement(f"Harness{now.reason}", now.message, False)


def _sandbox_ready(now: _Change) -> Iterator[Announcement]:
    sandbox = now.new.get("sandbox") or {}
    name = sandbox.get("name", "")
    if now.status == "True":
        yield Announcement("SandboxReady", f"Sandbox {name} takes tool calls{_after(sandbox)}")
    elif now.reason == "Starting":
        yield Announcement("SandboxRequested", f"Sandbox {name} is being made")
    elif now.reason == "Suspended":
        yield Announcement("SandboxSuspended", f"Sandbox {name} is put away, its workspace is kept")
    elif now.reason == "Released":
        if now.message:
            yield Announcement("SandboxReleased", now.message)
    elif now.reason != "NotRequested":
        yield Announcement(_SANDBOX_WARNINGS.get(now.reason, _named(now.reason)), now.message, False)


def _named(reason: str) -> str:
    return reason if reason == "PolicyNotEnforced" else f"Sandbox{reason}"


def _input_required(now: _Change) -> Iterator[Announcement]:
    if now.status == "True":
        yield Announcement(now.reason, now.message[:1].upper() + now.message[1:] or "The run waits for a person")


def _suspended(now: _Change) -> Iterator[Announcement]:
    if now.status == "True":
        yield Announcement("Suspended", "spec.suspend is true: the run's pods are released, its history stays")
    elif now.was[0] == "True" and not _over(now.new):
        yield Announcement("Resumed", "spec.suspend is false again")


def _succeeded(now: _Change) -> Iterator[Announcement]:
    if now.reason == "Cancelling":
        yield Announcement("Cancelling", f"The run is to end: {now.message}" if now.message else "The run is to end")


def _finished(now: _Change) -> Iterator[Announcement]:
    if now.status != "True":
        return
    match now.new["phase"]:
        case "Succeeded":
            yield Announcement("Succeeded", f"Finished after {_sums(now.new)}")
        case "Cancelled":
            yield Announcement("Cancelled", now.message or "The run was cancelled")
        case _:
            yield Announcement("Failed", f"{now.reason}: {now.message}" if now.message else now.reason, False)


_TOLD: dict[str, Callable[[_Change], Iterator[Announcement]]] = {
    "Accepted": _accepted,
    "HarnessReady": _harness_ready,
    "SandboxReady": _sandbox_ready,
    "InputRequired": _input_required,
    "Suspended": _suspended,
    "Succeeded": _succeeded,
    "Finished": _finished,
}


def _pod(status: Status) -> str:
    return str((status.get("harness") or {}).get("podName") or "")


def _over(status: Status) -> bool:
    return "completionTime" in status


def _after(sandbox: Status) -> str:
    asked, ready = moment(sandbox.get("requestedAt")), moment(sandbox.get("readyAt"))
    return f" {(ready - asked).total_seconds():.1f} s after it was asked for" if asked and ready else ""


def _sums(status: Status) -> str:
    parts = [_count(status.get("turns"), "turn"), _count(status.get("toolCalls"), "tool call")]
    return f"{', '.join(parts)} and {_count((status.get('usage') or {}).get('totalTokens'), 'token')}"


def _count(number: int | None, of: str) -> str:
    return f"{number or 0} {of}" + ("" if number == 1 else "s")
