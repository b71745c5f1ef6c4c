"""The error family, named by what the caller should do next.

TowlineError
├── Invalid             a person must change something: names the field, the value and what was expected
├── StoreUnavailable    Redis cannot be reached, or refuses writes: wait, then retry
├── StoreLost           a failover lost what this stands on: ask again, once the run's writer has put its tail back
├── StopWriting         this process no longer holds the run: exit, do not retry
│   ├── Fenced          a higher epoch owns the run
│   ├── LogClosed       the run has its terminal event
│   └── RunCancelled    the run is being cancelled: start nothing new
├── Gap                 the reader is below the first kept entry: start from `first_available`
├── Rewound             the store lost a tail: drop what lies beyond `head`, read on under the new incarnation
├── CallMismatch        a call id came back with other arguments: refuse
├── PromptsUnread       prompts came since the inbox was read: answer them before the run ends
├── Unauthenticated     the token names no run of ours: 401
└── SandboxFailed       the sandbox is gone, foreign or broken: `reason` says which
"""


class TowlineError(Exception):
    """Root of the family; never raised itself."""


class Invalid(TowlineError):
    """Something a person wrote is wrong. `problems` holds one sentence each: where, what, and what was expected."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class StoreUnavailable(TowlineError):
    """The event store did not answer, or answered that it cannot write. Retry later; nothing was decided."""


class StoreLost(TowlineError):
    """The store has forgotten a call that it had confirmed. `dispatched` is who had it, `<sandbox> <instance>`, empty
    when nobody had: it must go to no other."""

    def __init__(self, call_id: str, dispatched: str = "") -> None:
        self.call_id, self.dispatched = call_id, dispatched
        super().__init__(f"the store lost its record of call {call_id}: ask again")


class StopWriting(TowlineError):
    """The run is no longer this process's to write."""


class Fenced(StopWriting):
    """Another writer holds the run under a higher epoch. Exit; a retry would be refused again."""

    def __init__(self, epoch: int, current: int) -> None:
        self.epoch, self.current = epoch, current
        super().__init__(f"epoch {epoch} is stale: the run is at epoch {current}")


class LogClosed(StopWriting):
    """The run has its terminal event; `terminal` is that event's type."""

    def __init__(self, terminal: str) -> None:
        self.terminal = terminal
        super().__init__(f"the log is closed by {terminal}")


class RunCancelled(StopWriting):
    """The run is being cancelled; no new call may begin."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the run is being cancelled: {reason}")


class Gap(TowlineError):
    """Entries below `first_available` are no longer kept. Never a silent skip: the reader decides."""

    def __init__(self, from_seq: int, first_available: int) -> None:
        self.from_seq, self.first_available = from_seq, first_available
        super().__init__(f"seq {from_seq} is no longer kept; the first kept entry is {first_available}")


class Rewound(TowlineError):
    """The store lost acknowledged entries; the log ends at `head` under a new `incarnation`."""

    def __init__(self, incarnation: int, head: int) -> None:
        self.incarnation, self.head = incarnation, head
        super().__init__(f"the store lost a tail: the log ends at seq {head} in incarnation {incarnation}")


class CallMismatch(TowlineError):
    """A call id was used before with another tool or other arguments."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        super().__init__(f"call {call_id} was claimed with other arguments")


class PromptsUnread(TowlineError):
    """The run cannot end yet: `count` prompts were accepted that its harness has not seen."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"{count} prompts are unread")


class Unauthenticated(TowlineError):
    """No token, or one that this gateway does not accept."""


class SandboxFailed(TowlineError):
    """A sandbox cannot be used. `reason` is one word (StartFailed, Unreachable, KeyMismatch, BadReply, Lost, …)."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, message
        super().__init__(f"{reason}: {message}")
