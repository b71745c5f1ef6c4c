"""`towline tail` and `towline prompt` on a cluster's runs that have no events yet, stand still, or have ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.cluster_api import Api, serving
from towline.cli import cluster
from towline.cli.__main__ import parser
from towline.errors import Invalid
from towline.events import runs
from towline.events.event import RunRef, draft
from towline.events.store import Store
from towline.settings import LocalSettings

NOW = datetime(2026, 11, 30, tzinfo=UTC)
SPEC = b"{}"

Verb = Callable[..., Coroutine[Any, Any, int]]


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(cluster, "LOOK_AGAIN_SECONDS", 0.05)
    async with serving(tmp_path) as api:
        yield api


@pytest.fixture
def url(valkey_url: str) -> str:
    """One kind of server is enough for the commands."""
    return valkey_url


@pytest.fixture
def towline(api: Api, valkey_url: str) -> Verb:
    async def towline(*words: str) -> int:
        where = ("--kubeconfig", str(api.kubeconfig), "--redis-url", valkey_url)
        arguments = parser().parse_args([*words, *where])
        async with asyncio.timeout(30):
            code: int = await arguments.verb(arguments, LocalSettings())
        return code

    return towline


async def until_said(capfd: pytest.CaptureFixture[str], words: str) -> None:
    said = ""
    async with asyncio.timeout(10):
        while words not in said:
            said += capfd.readouterr().err
            await asyncio.sleep(0.02)


async def test_a_run_without_events_is_told_with_what_it_waits_for(api: Api, towline: Verb, run: RunRef) -> None:
    api.has("early", uid=run.uid)
    with pytest.raises(Invalid, match=r"run early has no events yet \(not seen by an operator yet\)"):
        await towline("tail", "early")

    api.has("early", "Pending", "TemplateNotFound", "no AgentTemplate later", uid=run.uid)
    with pytest.raises(Invalid, match=r"no events yet \(Pending, TemplateNotFound: no AgentTemplate later\)"):
        await towline("prompt", "early", "Hello?")

    api.has("early", "Failed", uid=run.uid)
    with pytest.raises(Invalid, match=r"has nothing of run early \(.*\) any more"):
        await towline("tail", "early", "--follow")


async def test_a_follower_waits_for_the_first_event_and_says_what_for(
    api: Api, towline: Verb, store: Store, run: RunRef, capfd: pytest.CaptureFixture[str]
) -> None:
    ref = RunRef("team", run.uid, "early")
    api.has("early", "Pending", "TemplateNotFound", "no AgentTemplate later", uid=ref.uid)
    following = asyncio.create_task(towline("tail", "early", "--follow", "--json"))
    await until_said(capfd, "towline: run early has no events yet (Pending, TemplateNotFound: no AgentTemplate later)")

    await runs.create(store, ref, SPEC, now=NOW)
    await runs.finish(store, ref, 1, draft("run.cancelled", {"reason": "enough"}, now=NOW))

    assert await following == 0
    shown = [json.loads(line)["type"] for line in capfd.readouterr().out.splitlines()]
    assert shown == ["run.started", "run.cancelled"]


@pytest.mark.parametrize(
    ("phase", "reason", "message", "said"),
    [
        ("Suspended", "UserRequested", "", "(Suspended, UserRequested)"),
        ("Pending", "Unschedulable", "0/2 nodes", "(Pending, Unschedulable: 0/2 nodes)"),
        ("InputRequired", "PromptAwaited", "", ""),
    ],
)
async def test_who_prompts_a_run_that_stands_still_is_told_why_it_does_not_answer(
    api: Api,
    towline: Verb,
    store: Store,
    run: RunRef,
    phase: str,
    reason: str,
    message: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ref = RunRef("team", run.uid, "chat")
    await runs.create(store, ref, SPEC, now=NOW)
    api.has("chat", phase, reason, message, uid=ref.uid)

    assert await towline("prompt", "chat", "Hello?") == 0

    out, err = capsys.readouterr()
    assert out == "prompt 1 is in the inbox of chat\n"
    assert err == (f"towline: the run takes prompts once it goes on {said}\n" if said else "")


async def test_who_prompts_a_run_that_has_ended_is_told_how_to_go_on(
    api: Api, towline: Verb, store: Store, run: RunRef, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = RunRef("team", run.uid, "chat")
    await runs.create(store, ref, SPEC, now=NOW)
    await runs.finish(store, ref, 1, draft("run.failed", {"reason": "Lost", "message": ""}, now=NOW))
    api.has("chat", "Failed", uid=ref.uid)

    assert await towline("prompt", "chat", "Hello?") == 1

    ended, hint = capsys.readouterr().err.splitlines()
    assert ended == f"towline: the run chat ({ref.uid}) has ended: run.failed"
    assert "spec.continueFrom" in hint
