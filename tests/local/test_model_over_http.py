"""The real adapters against the scripted model over HTTP: the user's key reaches it and nothing else, and its faults
become reasons."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.local.command import Finished, Towline, agent_run, says, script, template
from towline.api.snapshot import ScriptedCall, ScriptedStep
from towline.testing.scripted_server import Fault, ScriptedServer

KEY = "sk-a-very-secret-key"
SCRIPT = (
    ScriptedStep(
        text="I look.",
        tool_calls=(ScriptedCall(name="exec", arguments={"command": "env"}), ScriptedCall(name="list_dir")),
    ),
    ScriptedStep(text="All is well."),
)
APIS = ("anthropic", "openai")


async def run_against(
    towline: Towline, api: str, faults: Mapping[int, Fault] | None = None, *, accepted: str = KEY
) -> tuple[Finished, ScriptedServer]:
    """A run whose own provider is a script, with a key in the environment: it goes to the server instead."""
    path = towline.write("run.yaml", agent_run(), template(), script(says("The script must not answer.")))
    async with ScriptedServer(SCRIPT, faults, key=accepted) as server:
        if api == "anthropic":
            environment = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url}
        else:
            environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.openai_url, "TOWLINE_MODEL": "my-model"}
        running = towline.start("run", path, "--json", "--keep", **environment)
        return await asyncio.to_thread(running.finish), server


@pytest.mark.parametrize("api", APIS)
async def test_an_example_runs_against_the_users_model_when_there_is_a_key(towline: Towline, api: str) -> None:
    finished, server = await run_against(towline, api)
    assert finished.code == 0, finished.err
    assert finished.only("run.completed")["result"]["text"] == "All is well."
    assert [data["outcome"] for data in finished.each("agent.tool_result")] == ["ok", "ok"]
    wanted = "my-model" if api == "openai" else "claude-sonnet-5-5"
    assert {request.body["model"] for request in server.requests} == {wanted}
    assert f"{wanted} answers, paid with {api.upper()}_API_KEY" in finished.err


@pytest.mark.parametrize("api", APIS)
async def test_the_key_is_in_no_event_no_log_and_no_file_that_is_kept(towline: Towline, api: str) -> None:
    finished, _ = await run_against(towline, api)
    assert KEY.encode() not in finished.out
    assert KEY not in finished.err
    files = [path for path in towline.home.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("api", APIS)
async def test_a_refused_key_fails_the_run_with_the_reason_and_is_not_repeated(towline: Towline, api: str) -> None:
    finished, server = await run_against(towline, api, accepted="another")
    assert finished.code == 1
    failed = finished.only("run.failed")
    assert "Authentication" in failed["reason"]
    assert failed["reason"] in finished.err
    assert len(server.requests) == 1, "a wrong key is not tried again"
    assert KEY.encode() not in finished.out, "providers quote the key in their refusal"
    assert KEY not in finished.err


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        ("anthropic", Fault(malformed_json=True)),
        ("openai", Fault(malformed_sse=True)),
        ("anthropic", Fault(status=529)),
    ],
    ids=["malformed JSON", "malformed SSE", "overloaded"],
)
async def test_a_passing_fault_is_retried(towline: Towline, api: str, fault: Fault) -> None:
    finished, _ = await run_against(towline, api, {0: fault})
    assert finished.code == 0, finished.err
    assert len(finished.each("turn.retrying")) >= 1


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        ("anthropic", Fault(unknown_tool=True)),
        ("openai", Fault(bad_arguments=True)),
        ("openai", Fault(duplicate_call_ids=True)),
    ],
    ids=["unknown tool", "bad arguments", "two calls with one id"],
)
async def test_a_strange_tool_call_gets_its_one_result_and_the_run_goes_on(
    towline: Towline, api: str, fault: Fault
) -> None:
    finished, _ = await run_against(towline, api, {0: fault})
    assert finished.code == 0, finished.err
    used = [data["call_id"] for data in finished.each("agent.tool_use")]
    assert len(set(used)) == len(used) == 2
    assert sorted(used) == sorted(data["call_id"] for data in finished.each("agent.tool_result"))


@pytest.mark.parametrize("api", APIS)
async def test_an_empty_answer_ends_in_an_outcome(towline: Towline, api: str) -> None:
    finished, _ = await run_against(towline, api, {0: Fault(empty=True)})
    assert finished.types[-1] in ("run.completed", "run.failed")
    assert finished.code in (0, 1)


async def test_a_provider_that_is_written_down_gets_the_key_it_asks_for(towline: Towline) -> None:
    async with ScriptedServer(SCRIPT, key=KEY) as server:
        written = script()
        written["spec"] = {
            "api": "AnthropicMessages",
            "baseURL": server.url,
            "secretRef": {"name": "k"},
            "models": [{"name": "m", "price": {"inputMicroUSD": 3_000_000, "outputMicroUSD": 15_000_000}}],
        }
        path = towline.write("run.yaml", agent_run(), template(), written)
        running = towline.start("run", path, "--json", ANTHROPIC_API_KEY=KEY)
        finished = await asyncio.to_thread(running.finish)
    assert finished.code == 0, finished.err
    assert finished.err == f"towline: the key in ANTHROPIC_API_KEY is sent to {server.url}\n"
    assert finished.only("run.completed")["cost_micro_usd"] > 0


async def test_a_running_harness_has_the_key_in_no_argument_and_no_variable(towline: Towline) -> None:
    slow = (ScriptedStep(text="word " * 300, chunk_milliseconds=20),)
    path = towline.write("run.yaml", agent_run(), template(), script(says("no")))
    async with ScriptedServer(slow, key=KEY) as server:
        running = towline.start("run", path, "--json", ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=server.url)
        await asyncio.to_thread(running.until, "agent.message_start")
        for pid in towline.descendants():
            if pid != running.process.pid:
                assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        running.signal(2)
        finished = await asyncio.to_thread(running.finish)
    assert finished.code == 130
    assert json.loads(finished.out.splitlines()[-1])["type"] == "run.cancelled"
