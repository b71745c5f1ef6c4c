"""The inbox as the loop sees it: what waits there, and the one thing that cannot wait, an interruption.

Called by the loop before each step. It reads anew each time, behind what the history has taken, and remembers nothing:
a store that lost a tail may number other prompts the same.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from towline.errors import StoreUnavailable
from towline.harness.consumed import OWN_PROMPT_ID
from towline.harness.fold import History
from towline.harness.ports import Inbox
from towline.harness.steps import Pending
from towline.inbox import Prompt

T = TypeVar("T")


class Interrupted(Exception):
    """A prompt of delivery `interrupt` came while something else was going on, which was broken off."""


class Mail:
    """The prompts of one run."""

    def __init__(self, inbox: Inbox, own_prompt: str, history: History) -> None:
        self._inbox, self._own, self._history = inbox, own_prompt, history

    async def pending(self) -> Pending:
        """What no turn has taken. Of the queued prompts only the first is kept: there may be thousands."""
        consumed = self._history.consumed
        own = [Prompt(OWN_PROMPT_ID, self._own, "queue", "", "")] if self._own and 0 not in consumed else []
        found, cursor, queued = own, f"{max(consumed.upto, 0)}-0", bool(own)
        while page := await self._inbox.read_after(cursor):
            for prompt in page:
                if prompt.number not in consumed and not (queued and prompt.delivery == "queue"):
                    found.append(prompt)
                    queued = queued or prompt.delivery == "queue"
            cursor = page[-1].id
        return Pending(tuple(found), max(consumed.last, int(cursor.partition("-")[0])))

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; raises Interrupted, with `work` cancelled, when such a prompt comes first."""
        working = asyncio.ensure_future(work)
        listening = asyncio.ensure_future(self._interruption())
        try:
            await asyncio.wait([working, listening], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                listening.result()
                working.cancel()
                await asyncio.wait([working])
                if working.cancelled():
                    raise Interrupted
            return working.result()
        finally:
            working.cancel()
            listening.cancel()
            await asyncio.gather(working, listening, return_exceptions=True)

    async def news_or(self, end: Coroutine[Any, Any, None]) -> None:
        """Returns when the inbox should be read again, or when `end` does."""
        waiting = [asyncio.ensure_future(self._inbox.news()), asyncio.ensure_future(end)]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _interruption(self) -> None:
        while True:
            await self._inbox.news()
            try:
                if (await self.pending()).interrupt is not None:
                    return
            except StoreUnavailable:
                pass  # the next append meets it, and waits
