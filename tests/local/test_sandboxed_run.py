"""Runs that use tools: gateway, harness, tool server and bubblewrap are the real ones, and get killed."""

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from tests.local.command import Finished, Towline, agent_run, calls, eventually, says, script, template
from towline.clock import utc_now
from towline.errors import Fenced
from towline.events import sandbox
from towline.events.appender import Appender
from towline.events.event import RunRef, draft
from towline.events.store import Store
from towline.local.store import Folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "02-fix-a-bug.yaml"
SLOW = "echo ran >> calls; sleep 3; echo done"
"""A command that tells how often it was executed."""


def workspace(towline: Towline, finished: Finished) -> Path:
    return Folder(towline.store).volume(finished.events[0]["run"]["uid"]) / "workspace"


def one_call(towline: Towline, command: str, **spec: Any) -> Path:
    """A run that executes `command` and then answers."""
    steps = calls("exec", command=command), says("Finished.")
    return towline.write("run.yaml", agent_run(**spec), template(), script(*steps))


def assert_whole(finished: Finished) -> None:
    """No gap in the log, and one terminal event, the last; each tool use has one result."""
    assert [event["seq"] for event in finished.events] == list(range(1, len(finished.events) + 1))
    terminal = [kind for kind in finished.types if kind in ("run.completed", "run.failed", "run.cancelled")]
    assert terminal == [finished.types[-1]]
    used = [data["call_id"] for data in finished.each("agent.tool_use")]
    assert sorted(used) == sorted(data["call_id"] for data in finished.each("agent.tool_result"))


def test_an_agent_fixes_a_bug_in_a_sandbox(towline: Towline) -> None:
    finished = towline("run", EXAMPLE, "--json", "--keep")
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert finished.only("harness.sealed")["filters"] >= 1
    assert finished.only("sandbox.ready")["provider"] == "local"
    runs = [data["exit_code"] for data in finished.each("agent.tool_result") if data["name"] == "exec"]
    assert runs == [1, 0], "the tests failed before the change and pass after it"
    fixed = workspace(towline, finished) / "pages.py"
    assert "(items + per_page - 1) // per_page" in fixed.read_text()
    assert towline("tail", "fix-a-bug", "--json", "--from", "7").out == b"".join(
        finished.out.splitlines(keepends=True)[6:]
    )


def test_a_sandbox_that_the_gateway_gives_up_is_ended_and_the_next_call_gets_another(towline: Towline) -> None:
    steps = calls("exec", command="sleep 600"), calls("exec", command="echo alive"), says("Finished.")
    running = towline.start(
        "run", towline.write("run.yaml", agent_run(), template(), script(*steps)), "--json", "--keep"
    )
    ready = running.until("sandbox.ready")
    run = RunRef(ready["run"]["namespace"], ready["run"]["uid"])
    assert towline.process("^sleep 600")

    holder = json.loads((towline.store / "lock").read_text())

    async def give_up() -> None:
        store = Store.connect(f"unix://{holder['socket']}")
        await sandbox.give_up(store, run, 2, ready["data"]["name"], "it does not answer", now=utc_now())
        await store.aclose()

    asyncio.run(give_up())

    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert [data["outcome"] for data in finished.each("agent.tool_result")] == ["unknown", "ok"]
    assert len(finished.each("sandbox.ready")) == 2
    assert "sleep 600" not in towline.descendants().values()


def test_ctrl_c_in_the_middle_of_a_call_cancels_within_five_seconds(towline: Towline) -> None:
    running = towline.start("run", one_call(towline, "sleep 600 & sleep 601"), "--json", "--keep")
    running.until("sandbox.ready")
    assert towline.process("^sleep 601")
    asked = time.monotonic()
    running.signal(signal.SIGINT)
    finished = running.finish()
    assert time.monotonic() - asked <= 5
    assert finished.code == 130, finished.err
    assert_whole(finished)
    assert finished.only("run.cancelled") == {"reason": "Interrupted"}
    assert finished.only("agent.tool_result")["outcome"] == "cancelled"
    towline.assert_nothing_is_left(within_seconds=0.5)


def test_a_launcher_killed_with_9_in_the_middle_of_a_call_leaves_no_process(towline: Towline) -> None:
    running = towline.start("run", one_call(towline, "sleep 600 & setsid sleep 601"), "--json")
    running.until("sandbox.ready")
    assert towline.process("^sleep 601")
    running.signal(signal.SIGKILL)
    running.finish()
    towline.assert_nothing_is_left(within_seconds=3)


def test_a_harness_killed_in_the_middle_of_a_call_is_replaced_and_the_call_ran_once(towline: Towline) -> None:
    running = towline.start("run", one_call(towline, SLOW), "--json", "--keep")
    running.until("sandbox.ready")
    os.kill(towline.process("towline.harness"), signal.SIGKILL)
    running.until("harness.started")
    assert_epoch_is_refused(towline, running.seen, epoch=1)
    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert finished.only("harness.lost") == {"epoch": 1, "reason": "Killed", "exit_code": None, "signal": 9}
    assert [data["epoch"] for data in finished.each("harness.started")] == [1, 2]
    assert finished.only("agent.tool_result")["outcome"] == "ok"
    assert (workspace(towline, finished) / "calls").read_text() == "ran\n"


def assert_epoch_is_refused(towline: Towline, seen: list[bytes], epoch: int) -> None:
    """A writer of an older epoch gets nothing into the log."""
    run = json.loads(seen[0])["run"]
    holder = json.loads((towline.store / "lock").read_text())

    async def write() -> None:
        store = Store.connect(f"unix://{holder['socket']}")
        appender = Appender(store, RunRef(run["namespace"], run["uid"]), src="harness", epoch=epoch, nonce="late")
        try:
            await appender.append([draft("turn.completed", {"stop_reason": "late"}, now=utc_now())])
        except Fenced:
            return
        finally:
            await store.aclose()
        raise AssertionError("an old epoch wrote")

    asyncio.run(write())


def test_a_harness_killed_in_the_middle_of_an_answer_is_replaced(towline: Towline) -> None:
    step = says("word " * 60, chunkMilliseconds=25)
    running = towline.start("run", towline.write("run.yaml", agent_run(), template(), script(step)), "--json")
    running.until("agent.message_start")
    os.kill(towline.process("towline.harness"), signal.SIGKILL)
    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert len(finished.each("harness.lost")) == 1
    assert finished.only("run.completed")["result"]["text"].split() == ["word"] * 60


def test_a_harness_killed_at_twenty_random_moments_executes_each_call_once(towline: Towline) -> None:
    number = 40
    steps = [calls("exec", command=f"echo {n} >> calls; sleep 0.1") for n in range(number)]
    run = agent_run(backoffLimit=100)
    path = towline.write("run.yaml", run, template(), script(*steps, says("Finished.")))
    running = towline.start("run", path, "--json", "--keep")
    moments = random.Random(3)  # the same moments each time, as far as a machine allows
    for kill in range(20):
        # Progress between two kills: without any, three of them end the run as a CrashLoop, as they should.
        if kill % 4:
            running.until("agent.tool_result")
        time.sleep(moments.uniform(0, 0.4))
        os.kill(towline.process("towline.harness"), signal.SIGKILL)
        running.until("harness.lost")
    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert len(finished.each("harness.lost")) == 20
    assert {data["outcome"] for data in finished.each("agent.tool_result")} == {"ok"}
    executed = (workspace(towline, finished) / "calls").read_text().split()
    assert executed == [str(n) for n in range(number)]


def test_a_gateway_killed_in_the_middle_of_a_call_is_replaced_and_the_call_ran_once(towline: Towline) -> None:
    running = towline.start("run", one_call(towline, SLOW), "--json", "--keep")
    running.until("sandbox.ready")
    eventually(lambda: list((towline.store / "workspaces").glob("*/workspace/calls")))
    os.kill(towline.process("towline.gateway"), signal.SIGKILL)
    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert finished.each("harness.lost") == []
    assert finished.only("agent.tool_result")["outcome"] == "ok"
    assert (workspace(towline, finished) / "calls").read_text() == "ran\n"


def test_a_sandbox_killed_in_the_middle_of_a_call_is_replaced_at_the_next_one(towline: Towline) -> None:
    steps = calls("exec", command="sleep 600"), calls("exec", command="echo again"), says("Finished.")
    running = towline.start("run", towline.write("run.yaml", agent_run(), template(), script(*steps)), "--json")
    running.until("sandbox.ready")
    assert towline.process("^sleep 600")
    os.kill(towline.process("^/opt/towline/rt/"), signal.SIGKILL)
    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    first, second = finished.each("agent.tool_result")
    assert (first["outcome"], second["outcome"]) == ("unknown", "ok")
    assert finished.only("sandbox.lost")["name"].endswith("-1")
    assert [data["name"][-2:] for data in finished.each("sandbox.ready")] == ["-1", "-2"]


def test_a_sandbox_that_cannot_start_is_an_error_that_the_model_sees(towline: Towline) -> None:
    broken = {
        "apiVersion": "towline.dev/v1alpha1",
        "kind": "SandboxClass",
        "metadata": {"name": "broken"},
        "spec": {"provider": "local", "local": {"rootfs": "/nowhere/at/all"}},
    }
    steps = calls("exec", command="true"), calls("exec", command="true"), says("I could not run it.")
    run = agent_run(sandbox={"className": "broken"})
    finished = towline("run", towline.write("run.yaml", run, template(), script(*steps), broken), "--json")
    assert finished.code == 0, finished.err
    assert_whole(finished)
    for result in finished.each("agent.tool_result"):
        assert (result["outcome"], result["is_error"]) == ("error", True)
        assert "/nowhere/at/all" in result["content"][0]["text"]
    assert [data["reason"] for data in finished.each("sandbox.lost")] == ["StartFailed", "StartFailed"]


def test_an_eager_sandbox_starts_before_it_is_wanted(towline: Towline) -> None:
    step = says("word " * 40, chunkMilliseconds=25)
    run = agent_run(sandbox={"policy": "Eager"})
    finished = towline("run", towline.write("run.yaml", run, template(), script(step)), "--json")
    assert finished.code == 0, finished.err
    assert "sandbox.ready" in finished.types
    assert "sandbox.requested" not in finished.types


def test_the_store_killed_in_the_middle_of_a_run_is_started_again(towline: Towline) -> None:
    running = towline.start("run", one_call(towline, SLOW), "--json", "--keep")
    running.until("sandbox.ready")
    os.kill(towline.process("valkey-server"), signal.SIGKILL)
    finished = running.finish()
    assert finished.code == 0, finished.err
    assert_whole(finished)
    assert (workspace(towline, finished) / "calls").read_text() == "ran\n"


def test_without_user_namespaces_the_run_fails_and_says_what_to_do(towline: Towline) -> None:
    """In a user namespace that allows no further one, as on a machine that allows none at all."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    towline.wrapper = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    finished = towline("run", one_call(towline, "true"), "--json")
    assert finished.code == 3, finished.err
    assert_whole(finished)
    failed = finished.only("run.failed")
    assert failed["reason"] == "SandboxUnavailable"
    assert "sysctl -w user.max_user_namespaces" in failed["message"]
    assert "sysctl -w user.max_user_namespaces" in finished.err


def test_without_user_namespaces_a_run_without_tool_calls_succeeds(towline: Towline) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    towline.wrapper = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    finished = towline("run", towline.write("run.yaml", agent_run(), template(), script(says("Hello."))), "--json")
    assert finished.code == 0, finished.err


def test_the_files_and_the_environment_of_a_sandbox_hold_no_key(towline: Towline) -> None:
    look = (
        "env; cat /proc/self/environ /proc/1/environ /proc/1/cmdline; ls -lR /run /var /tmp / 2>/dev/null | head -500"
    )
    look += "; grep -rl s3cr3t /sandbox /tmp /etc /run /opt /var 2>/dev/null"
    finished = towline("run", one_call(towline, look), "--json", "--keep", ANY_OTHER_KEY="s3cr3t-of-the-user")
    assert finished.code == 0, finished.err
    said = finished.only("agent.tool_result")["content"][0]["text"]
    assert "s3cr3t" not in said.replace("grep -rl s3cr3t", "")
    for secret in ((towline.store / "secret").read_text(), "TOWLINE_SANDBOX_KEY", "TOWLINE_REDIS_URL", "API_KEY"):
        assert secret not in said


def test_a_harness_that_dies_again_and_again_at_one_point_fails_the_run(towline: Towline) -> None:
    running = towline.start("run", one_call(towline, "true"), "--json")
    for _ in range(3):
        pid = towline.process("towline.harness")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: pid not in towline.descendants())
    finished = running.finish()
    assert finished.code == 1
    assert finished.only("run.failed")["reason"] == "CrashLoop"
    assert "CrashLoop: the harness ended 3 times (signal 9), without progress" in finished.err


def test_a_cache_that_cannot_be_written_fails_the_run_with_its_reason(towline: Towline) -> None:
    path = one_call(towline, "true")
    finished = towline("run", path, "--json", XDG_CACHE_HOME="/proc/nowhere")
    assert finished.code == 3, finished.err
    assert finished.only("run.failed")["reason"] == "SandboxUnavailable"
    assert "/proc/nowhere" in finished.err
