"""The runs of a cluster, for the verbs: found by the Kubernetes API, cancelled by it, and read from the event store.

The store is reached by the URL that --redis-url gives, else through a port-forward to the bundled one. All that speaks
to a cluster is imported when it is needed: a laptop has none.
"""

import argparse
import asyncio
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from towline.api.conditions import TERMINAL_PHASES
from towline.api.fields import nearest
from towline.cli.sanitize import one_line
from towline.cli.store_option import at_home
from towline.errors import Invalid, StoreUnavailable
from towline.events.event import RunRef
from towline.events.log import EventLog
from towline.events.store import Store
from towline.kube.errors import Refused
from towline.settings import LocalSettings

if TYPE_CHECKING:
    from towline.kube.client import Kube

GOES_ON = ("Running", "Starting", "Waking", "Restarting", "PromptAwaited", "Cancelling")
"""Reasons of Succeeded while a run goes on by itself, or with the next prompt."""
LOOK_AGAIN_SECONDS = 1.0
MAX_NOTE_CHARACTERS = 400
SHORTEST_PREFIX = 4  # of a uid, as for kept runs
SYSTEM_NAMESPACE = "towline-system"
OPTIONS = ("kubeconfig", "context", "namespace", "redis_url", "system_namespace")
"""Members of the arguments; any of them asks a cluster."""
FIELD_MANAGER = "towline-cli"
STORE_SECRET, STORE_ROLE, STORE_PORT = "towline-store", "towline.dev/role=store", 6379

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the user wants to look."""

    kubeconfig: Path
    context: str | None
    namespace: str | None
    system_namespace: str
    redis_url: str | None


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("runs of a cluster", "any of these options asks a cluster, not this machine")
    group.add_argument("--kubeconfig", metavar="FILE", type=Path, help="credentials (default: $KUBECONFIG)")
    group.add_argument("--context", metavar="NAME", help="which context of them (default: the current one)")
    group.add_argument("-n", "--namespace", metavar="NAME", help="namespace of the runs (default: the context's)")
    group.add_argument("--redis-url", metavar="URL", help="event store (default: a port-forward to the bundled one)")
    group.add_argument(
        "--system-namespace",
        metavar="NAME",
        help=f"of the bundled store (default: {SYSTEM_NAMESPACE})",
    )


def place(arguments: argparse.Namespace, settings: LocalSettings) -> Place | None:
    """None when the user asks for the runs of this machine."""
    if not any(getattr(arguments, name) for name in OPTIONS):
        return None
    if arguments.store:
        raise Invalid("--store is a folder of this machine; it does not go with the options of a cluster")
    return Place(
        kubeconfig=at_home(arguments.kubeconfig or settings.kubeconfig, "KUBECONFIG"),
        context=arguments.context,
        namespace=arguments.namespace,
        system_namespace=arguments.system_namespace or SYSTEM_NAMESPACE,
        redis_url=arguments.redis_url,
    )


@asynccontextmanager
async def api(where: Place) -> AsyncIterator[tuple["Kube", str]]:
    """A client, and the namespace that is meant. Raises Invalid without the packages, or without credentials."""
    try:
        from towline.kube import login
        from towline.kube.client import Kube
    except ImportError as fault:
        raise Invalid(
            f"asking a cluster needs the extra `operator` (pip install 'towline[operator]'): {fault}"
        ) from None
    client = login.client(await login.configuration(where.kubeconfig, where.context))
    kube = Kube(client, field_manager=FIELD_MANAGER)
    try:
        yield kube, where.namespace or login.namespace(where.kubeconfig, where.context)
    finally:
        await kube.aclose()


async def runs(kube: "Kube", namespace: str) -> list[Object]:
    """The oldest first."""
    from towline.kube.kinds import AGENT_RUN

    found = await kube.list(AGENT_RUN, namespace)
    return sorted(found, key=lambda run: (run["metadata"]["creationTimestamp"], run["metadata"]["name"]))


def find(known: Sequence[Object], namespace: str, wanted: str) -> RunRef:
    """The run that `wanted` means: a name, a uid, or the beginning of one. Raises Invalid."""
    names = [run["metadata"] for run in known]
    begun = [each for each in names if len(wanted) >= SHORTEST_PREFIX and each["uid"].startswith(wanted)]
    chosen = [each for each in names if each["name"] == wanted] or begun
    if len(chosen) == 1:
        return RunRef(namespace, chosen[0]["uid"], chosen[0]["name"])
    if chosen:
        uids = ", ".join(each["uid"] for each in chosen)
        raise Invalid(f"{wanted!r} is the beginning of several runs: {uids}")
    if (meant := nearest(wanted, [each["name"] for each in names])) is not None:
        raise Invalid(f"no run {wanted!r} in namespace {namespace}; did you mean {meant!r}?")
    there = ", ".join(each["name"] for each in names[-20:])
    raise Invalid(f"no run {wanted!r} in namespace {namespace}; " + (f"there are: {there}" if there else "it has none"))


async def cancel(where: Place, wanted: str, reason: str) -> tuple[str, str]:
    """Sets the switch of the run that `wanted` means; its name, and its phase if it has ended."""
    from towline.kube.kinds import AGENT_RUN

    async with api(where) as (kube, namespace):
        known = await runs(kube, namespace)
        run = find(known, namespace, wanted)
        phases = {each["metadata"]["uid"]: (each.get("status") or {}).get("phase") for each in known}
        if (phase := phases[run.uid]) in TERMINAL_PHASES:
            return run.name, str(phase)
        patch = {"metadata": {"uid": run.uid}, "spec": {"cancel": True, "cancelReason": reason}}
        if await kube.merge(AGENT_RUN, namespace, run.name, patch) is None:
            raise Invalid(f"run {run.name} of namespace {namespace} was deleted just now")
        return run.name, ""


def standstill(run: Object) -> str:
    """What keeps a run from going on, in the words that `kubectl get` and `describe` show; "" when nothing does."""
    status = run.get("status") or {}
    told = next((each for each in status.get("conditions") or () if each["type"] == "Succeeded"), None)
    if told is None:
        return "not seen by an operator yet"
    if told["status"] != "Unknown" or told["reason"] in GOES_ON:
        return ""
    said = f"{status['phase']}, {told['reason']}"
    return f"{said}: {told['message']}" if told.get("message") else said


@asynccontextmanager
async def found(where: Place, wanted: str, *, patient: bool = False) -> AsyncIterator[tuple[Store, RunRef, str]]:
    """A run, the store that has its events, and what keeps it from going on.

    One without events is an error; with `patient` it is said to be waited for, and waited for.
    """
    async with api(where) as (kube, namespace):
        run, obj = await _look(kube, namespace, wanted)
        async with _store_url(where, kube) as url:
            store = Store.connect(url)
            try:
                said = ""
                while (await EventLog(store, run).state()).absent:
                    if (obj.get("status") or {}).get("phase") in TERMINAL_PHASES:
                        raise Invalid(f"the event store has nothing of run {run.name} ({run.uid}) any more")
                    why = standstill(obj)
                    told = f"run {run.name} has no events yet" + (f" ({why})" if why else "")
                    if not patient:
                        raise Invalid(told)
                    if told != said:
                        print(f"towline: {one_line(told, MAX_NOTE_CHARACTERS)}", file=sys.stderr)
                    said = told
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
                    run, obj = await _look(kube, namespace, run.uid)
                yield store, run, standstill(obj)
            finally:
                await store.aclose()


async def _look(kube: "Kube", namespace: str, wanted: str) -> tuple[RunRef, Object]:
    """The run that a name, a UID or its beginning means, and its object as it is now."""
    known = await runs(kube, namespace)
    run = find(known, namespace, wanted)
    return run, next(each for each in known if each["metadata"]["uid"] == run.uid)


@asynccontextmanager
async def _store_url(where: Place, kube: "Kube") -> AsyncIterator[str]:
    if where.redis_url:
        yield where.redis_url
        return
    from towline.kube.kinds import POD, SECRET
    from towline.kube.port_forward import forwarded

    try:
        secret = await kube.get(SECRET, where.system_namespace, STORE_SECRET)
        pods = await kube.list(POD, where.system_namespace, labels=STORE_ROLE)
    except Refused as fault:
        raise Invalid(
            f"the event store of {where.system_namespace} cannot be found: {fault}; use --redis-url"
        ) from None
    if secret is None:
        raise Invalid(f"namespace {where.system_namespace} has no event store of its own; use --redis-url")
    running = [pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("phase") == "Running"]
    if not running:  # its pod is being replaced, perhaps
        raise StoreUnavailable(
            f"the event store of namespace {where.system_namespace} does not run; or use --redis-url"
        )
    inside = b64decode(secret["data"]["url"]).decode()
    async with forwarded(kube.api, where.system_namespace, running[0], STORE_PORT) as port:
        yield at_port(inside, port)


def at_port(url: str, port: int) -> str:
    """The same store, at a port of this machine."""
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{port}"))
