"""One run on this machine, from its order to its outcome: the store, the run in it, the supervisor, the viewer.

Called by `cli/run.py`. It puts the parts together in the order the operator does in a cluster: first the snapshot,
which holds the prompt, then the processes. When it returns or raises, no process of it is left.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from towline.clock import utc_now
from towline.errors import Rewound, StoreUnavailable
from towline.events import runs
from towline.events.event import Event, RunRef
from towline.events.notices import Notices
from towline.events.store import Store
from towline.local.commands import Files
from towline.local.feed import publish_lifecycle
from towline.local.order import Order
from towline.local.runtime import write_secret
from towline.local.sandboxes import Sandboxes
from towline.local.store import OwnedStore, owned
from towline.local.supervise import Stop, Supervisor
from towline.local.typed import post_typed
from towline.local.watch import Viewer, Watch
from towline.local.workers import Surroundings

SHOW_SECONDS = 5.0  # for a viewer to show what is left after the end of the run
PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its terminal event, and the end of the log of a process that ended it."""

    terminal: Event
    last_words: str = ""


async def launch(
    order: Order,
    viewer: Viewer,
    stop: Stop,
    *,
    typed: "asyncio.Queue[str]",
    store: Path | None,
    cache: Path,
    trust: Mapping[str, str],
    log_level: str,
) -> Outcome:
    """Runs `order` in the store at `store` (None: one that vanishes with the run); `typed` brings it prompts.

    Raises StoreInUse or MachineCannot; OSError when the viewer can show nothing more, after the run was cancelled.
    """
    snapshot = order.snapshot
    run = RunRef(snapshot.namespace, snapshot.uid, snapshot.name)
    async with owned(store, verb="run", uid=run.uid, on_exit=stop.changed.set) as held:
        _write_credentials(held, order)
        await runs.create(held.store, run, snapshot.to_json(), now=utc_now())
        notices = Notices(held.store)
        showing = asyncio.create_task(_show(Watch(run, viewer), held.store, notices))
        showing.add_done_callback(lambda task: _stop_unless_shown(task, stop))
        feeding = asyncio.create_task(publish_lifecycle(held.store, notices, run))
        posting = asyncio.create_task(post_typed(held.store, run, typed, viewer))
        supervisor = Supervisor(
            snapshot=snapshot,
            run=run,
            held=held,
            notices=notices,
            sandboxes=Sandboxes(snapshot, run, held, cache=cache, viewer=viewer, poke=stop.changed.set),
            stop=stop,
            surroundings=Surroundings(has_model_key=order.model_key is not None, trust=trust, log_level=log_level),
            viewer=viewer,
        )
        try:
            await supervisor.run()
            terminal = await asyncio.wait_for(showing, SHOW_SECONDS)
            await asyncio.wait_for(feeding, SHOW_SECONDS)
            return Outcome(terminal, supervisor.last_words())
        finally:
            for task in (showing, feeding, posting):
                task.cancel()
            await asyncio.gather(showing, feeding, posting, return_exceptions=True)
            await notices.aclose()


def _stop_unless_shown(task: "asyncio.Task[Event]", stop: Stop) -> None:
    """Nobody sees the run any more (`| head`): as a program that gets SIGPIPE it ends, but cleanly."""
    if not task.cancelled() and task.exception() is not None:
        stop.request("OutputClosed")


def _write_credentials(held: OwnedStore, order: Order) -> None:
    files = Files(held.runtime)
    held.folder.installation_secret()
    write_secret(files.identity_key, secrets.token_hex(32).encode())
    if order.model_key is not None:
        write_secret(files.model_key, order.model_key.encode())


async def _show(watch: Watch, store: Store, notices: Notices) -> Event:
    """Shows the run to its end, through absences of the store and its losses."""
    while True:
        try:
            terminal = await watch.until_closed(store, notices)
            assert terminal is not None, "it began with the first event"
            return terminal
        except Rewound:
            pass  # shown again, as what they are now
        except StoreUnavailable:
            await asyncio.sleep(PAUSE_SECONDS)
