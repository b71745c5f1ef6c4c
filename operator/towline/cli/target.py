"""Which run a verb is about, on this machine or on a cluster, and the store that has its events.

Shared by the verbs that speak of one run: `tail`, `prompt`, `cancel`.
"""

import argparse
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from towline.cli import cluster
from towline.cli.store_option import add_store_option, store_path
from towline.errors import Invalid, StoreUnavailable
from towline.events.event import RunRef
from towline.events.store import Store
from towline.local.faults import MachineCannot
from towline.local.here import Here, run_here
from towline.settings import LocalSettings

T = TypeVar("T")

REOPENINGS = 5  # in a row, without getting further: then the store is broken, not changing hands


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


async def through_changes(work: Callable[[], Awaitable[T]], progress: Callable[[], int]) -> T:
    """What `work` returns; it is begun again when the store changed hands meanwhile: who served it has ended.

    `progress` rises whenever `work` gets further.
    """
    reopenings, lost = 0, False
    while True:
        before = progress()
        try:
            return await work()
        except StoreUnavailable:
            lost = True
            reopenings = 1 if progress() > before else reopenings + 1
            if reopenings > REOPENINGS:
                raise
        except Invalid as fault:
            if lost:
                raise MachineCannot("the launcher of the run has ended, and its store with it") from fault
            raise
