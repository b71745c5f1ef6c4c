"""A viewer that writes from a thread of its own, so that a slow reader of stdout never holds up the run.

Called by `run`. The launcher supervises processes in the thread that would otherwise wait in write().
"""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from towline.events.event import Event
from towline.local.watch import Viewer


class Threaded:
    """Hands everything to `inner`, in order. What `inner` raised is raised by the next call."""

    def __init__(self, inner: Viewer) -> None:
        self._inner = inner
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._fault: OSError | None = None
        # A daemon: a reader that never reads on must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="viewer", daemon=True)
        self._thread.start()

    @property
    def wants_deltas(self) -> bool:
        return self._inner.wants_deltas

    def event(self, event: Event) -> None:
        self._hand_over(lambda: self._inner.event(event))

    def delta(self, delta: Mapping[str, Any]) -> None:
        self._hand_over(lambda: self._inner.delta(delta))

    def note(self, text: str) -> None:
        self._hand_over(lambda: self._inner.note(text))

    def typed(self, text: str | None) -> None:
        self._hand_over(lambda: self._inner.typed(text))

    def close(self, timeout_seconds: float) -> bool:
        """Waits until all is shown; False when the reader does not take it."""
        self._waiting.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def fault(self) -> OSError | None:
        """What ended the showing early."""
        return self._fault

    def _hand_over(self, show: Callable[[], None]) -> None:
        if self._fault is not None:
            raise self._fault
        self._waiting.put(show)

    def _work(self) -> None:
        while (show := self._waiting.get()) is not None:
            try:
                show()
            except OSError as fault:
                self._fault = fault
                return
