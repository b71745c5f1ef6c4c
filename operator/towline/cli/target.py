"""Which run a verb is about, on this machine or on a cluster, and the store that has its events.

Shared by the verbs that speak of one run: `tail`, `prompt`, `cancel`.
"""

import argparse
import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from towline.cli import cluster
from towline.cli.store_option import add_store_option, store_path
from towline.errors import StoreUnavailable
from towline.events.event import RunRef
from towline.events.store import Store
from towline.kube.errors import Unreachable
from towline.local.faults import MachineCannot, NoSuchRun
from towline.local.here import Here, run_here
from towline.settings import LocalSettings

T = TypeVar("T")

PAUSES_SECONDS = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Before each reopening in a row that gets no further. A store that changes hands on this machine is back at once, one
whose pod is replaced in some ten seconds; after the last pause it is broken."""
SETTLED_SECONDS = 60.0  # whoever had the store for so long lost it anew, though the run was quiet
FIRST_REOPENINGS = 2  # for a store that has never answered: it may just be changing hands, but hardly more


@dataclass(frozen=True, slots=True)
class Target:
    """A run that was found. `here` says more of one on this machine."""

    store: Store
    run: RunRef
    here: Here | None = None
    standstill: str = ""
    """What keeps a run of a cluster from going on, if anything does."""


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run's name (the latest of that name), its uid, or the beginning of it"
    )


def add_place_options(parser: argparse.ArgumentParser) -> None:
    add_store_option(parser)
    cluster.add_cluster_options(parser)


def command(verb: str, run: str, arguments: argparse.Namespace) -> str:
    """What to type to do something with the run, from where we are."""
    options = (
        ("--store", arguments.store),
        ("--kubeconfig", getattr(arguments, "kubeconfig", None)),
        ("--context", getattr(arguments, "context", None)),
        ("-n", getattr(arguments, "namespace", None)),
        ("--redis-url", getattr(arguments, "redis_url", None)),
        ("--system-namespace", getattr(arguments, "system_namespace", None)),
    )
    words = [word for option, value in options if value is not None for word in (option, str(value))]
    return shlex.join(["towline", verb, *words, run])


def prompt_command(run: str, arguments: argparse.Namespace) -> str:
    """What to type to talk to the run."""
    return f'{command("prompt", run, arguments)} "…"'


def unattended(run: RunRef) -> str:
    """What a run of this machine is told by that has no launcher and no end, and the two ways on."""
    return (
        f"nobody works on the run {run.name} ({run.uid}): its `towline run` was killed; start a new one with "
        "spec.continueFrom, which goes on from its history, or give it its end with `towline cancel`"
    )


@asynccontextmanager
async def target(
    arguments: argparse.Namespace, settings: LocalSettings, *, verb: str, alive: bool = False, patient: bool = False
) -> AsyncIterator[Target]:
    """The run that `arguments.run` names. Raises Invalid when there is none.

    `alive`: rather one that is at work. `patient`: its first event may be to come.
    """
    where = cluster.place(arguments, settings)
    if where is not None:
        async with cluster.found(where, arguments.run, patient=patient) as (store, run, standstill):
            yield Target(store, run, standstill=standstill)
        return
    path, unkept = store_path(arguments, settings), arguments.store is None
    async with run_here(path, arguments.run, verb=verb, unkept=unkept, alive=alive) as here:
        yield Target(here.store, here.run, here)


async def through_changes(
    work: Callable[[], Awaitable[T]],
    progress: Callable[[], int],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """What `work` returns; it is begun again when the store went away meanwhile: who served it has ended or moved.

    `progress` rises whenever `work` gets further. Raises what `work` raises, of StoreUnavailable the last one.
    """
    start, reopenings, lost = progress(), 0, False
    while True:
        before, began = progress(), clock()
        try:
            return await work()
        except StoreUnavailable:
            lost = True
            if progress() > before or clock() - began > SETTLED_SECONDS:
                reopenings = 0
            if reopenings == (len(PAUSES_SECONDS) if progress() > start else FIRST_REOPENINGS):
                raise
        except Unreachable:  # the API server, by which the store is found
            if not lost or reopenings == len(PAUSES_SECONDS):
                raise
        except NoSuchRun as fault:
            if lost:
                raise MachineCannot("the launcher of the run has ended, and its store with it") from fault
            raise
        await sleep(PAUSES_SECONDS[reopenings])
        reopenings += 1
