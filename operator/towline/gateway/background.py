"""Work that nobody waits for: kept alive until it ends, and never silent when it fails.

`bound_run.py` cancels commands and listens through it. The event loop alone holds tasks only weakly.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from towline.errors import TowlineError

log = logging.getLogger(__name__)

_running: set[asyncio.Task[None]] = set()


def spawn(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Start it; its failure becomes a log line that says what was being done."""
    task = asyncio.create_task(work, name=what)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[None]) -> None:
    _running.discard(task)
    if task.cancelled() or (fault := task.exception()) is None:
        return
    expected = isinstance(fault, TowlineError)
    fields = {"work": task.get_name(), "cause": str(fault)}
    log.log(
        logging.INFO if expected else logging.ERROR,
        "background work failed",
        extra={"fields": fields},
        exc_info=None if expected else fault,
    )
