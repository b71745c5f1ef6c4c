"""What the loop needs from the world: five ports. `process.py` fills them with the real thing, tests with fakes.

The fakes are public: `towline.testing.ports`.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from towline.errors import TowlineError
from towline.events.event import Draft
from towline.events.totals import Totals
from towline.harness.models.base import Model, Tool
from towline.harness.transcript import ToolResult, ToolUse
from towline.inbox import Prompt


class GatewayRefused(TowlineError):
    """The gateway will not take this request, now or later: there will be no result. The run fails."""


class GatewayUnavailable(TowlineError):
    """The gateway stayed away: end the process; the call keeps its id, and the next one asks again."""


class Deltas(Protocol):
    """The live text of one answer. Never fails the run, except with StopWriting."""

    async def add(self, kind: str, text: str) -> None:
        """`kind` is `text` or `thinking`. May return before the text is sent."""


class Sink(Protocol):
    """The event log and its live stream. Raises StopWriting (end at once) or StoreUnavailable (end, to be resumed)."""

    async def append(self, drafts: Sequence[Draft], totals: Totals) -> None:
        """All of them or none, in this order; durable when it returns."""

    async def finish(self, terminal: Draft, *, seen_prompt: int | None = None) -> None:
        """Settle what is open, append the terminal event, close the log.

        Raises PromptsUnread, having done nothing, when there are prompts behind number `seen_prompt`.
        """

    def deltas(self, message_id: str) -> AbstractAsyncContextManager[Deltas]:
        """Live text of an answer that begins now; leaving the context sends the rest."""
        ...

    async def recovered_text(self, message_id: str) -> str:
        """What a dead harness had sent live of an answer; empty when nothing is left of it."""
        ...


class Tools(Protocol):
    """The gateway."""

    @property
    def offered(self) -> tuple[Tool, ...]:
        """What the model may call; does not change during a run."""
        ...

    async def call(self, use: ToolUse) -> ToolResult:
        """The one recorded result of this call id, executed at most once however often it is asked for.

        Every failure of the tool, unknown names and unusable arguments included, is a result. Raises
        StopWriting, GatewayRefused, GatewayUnavailable, Unauthenticated.
        """
        ...

    async def cancel(self, use: ToolUse) -> ToolResult:
        """The one recorded result of a call that shall not run, or no longer: what runs is killed, within seconds.

        A call that was settled before keeps its result. Same errors as `call`.
        """
        ...


class Inbox(Protocol):
    """The run's prompts."""

    async def read_after(self, cursor: str) -> Sequence[Prompt]:
        """Prompts behind `cursor`, oldest first; may be only the first few. None means that there are no more."""
        ...

    async def news(self) -> None:
        """Returns when there may be a new prompt since this was last asked; early now and then, never too late."""
        ...


class Clock(Protocol):
    """Time and chance."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def new_message_id(self) -> str:
        """`msg_` and 12 hexadecimal digits, new in the run."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    model: Model
    tools: Tools
    sink: Sink
    inbox: Inbox
    clock: Clock
