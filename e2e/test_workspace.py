"""Workspaces that outlive their sandboxes, on real volumes: asleep, suspended, and when the sandbox is lost.

Nobody provisions volumes on the test cluster; volumes.py offers folders of the sandbox node.
"""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.layout import Cluster
from e2e.cluster.shell import wait_until
from e2e.installation import HARNESSES, SANDBOXES, Installation
from e2e.kubectl import Object
from e2e.runs import Run, Team, Towline, assert_whole, call, say
from e2e.volumes import Volumes
from towline.manifests.sandbox_pod import sandbox_user
from towline.naming import workspace_claim_name

pytestmark = pytest.mark.timeout(300)

ASLEEP_SECONDS = 60
AT_ONCE = ("--grace-period=0", "--force")


@pytest.fixture
def volumes(installation: Installation, cluster: Cluster) -> Iterator[Volumes]:
    """Torn down after the team of the test, if it is asked for first."""
    volumes = Volumes(installation.kubectl, cluster, f"e2e-{secrets.token_hex(3)}")
    volumes.enter()
    yield volumes
    volumes.leave()


def class_with(team: Team, storage_class: str, **spec: Any) -> str:
    """A SandboxClass whose workspaces are kept in volumes of a StorageClass."""
    volume = {"storageClassName": storage_class, "size": "32Mi"}
    return team.sandbox_class(provider="pod", workspace={"volume": volume}, **spec)


def keeping(team: Team, name: str, class_name: str, *steps: Object, **spec: Any) -> Run:
    """A run that wants its workspace kept."""
    return team.run(name, *steps, sandbox={"className": class_name, "retain": "Suspend"}, **spec)


def talkative(team: Team, class_name: str, *steps: Object) -> Run:
    """The same, interactive, and soon asleep."""
    return keeping(team, "talk", class_name, *steps, interactive=True, idlePolicy={"suspendAfterSeconds": 1})


def until_no_pod(run: Run) -> None:
    kubectl, labels = run.installation.kubectl, f"towline.dev/run-uid={run.uid}"

    def none_works() -> bool:
        pods = [pod for each in (HARNESSES, SANDBOXES) for pod in kubectl.items("pods", each, labels)]
        return not [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]

    wait_until("no pod of the run works", none_works, ASLEEP_SECONDS)


def until_asleep(run: Run) -> None:
    run.until("HarnessReady", "False", "Asleep", ASLEEP_SECONDS)
    until_no_pod(run)


def claim_of(run: Run) -> Object | None:
    return run.installation.kubectl.find("persistentvolumeclaim", SANDBOXES, workspace_claim_name(run.uid))


def until_claim_is_gone(run: Run, uid: str) -> None:
    kubectl, name = run.installation.kubectl, workspace_claim_name(uid)
    kubectl.until("is gone", "persistentvolumeclaim", SANDBOXES, name, lambda found: found is None)


WRITE = call("echo kept >note; cat note")
READ = call("cat note")


def test_a_workspace_outlives_sleep_and_is_gone_with_its_run(volumes: Volumes, team: Team, towline: Towline) -> None:
    volumes.offer()
    run = talkative(team, class_with(team, volumes.name), WRITE, say("written"), READ, say("read"))
    uid = run.uid
    until_asleep(run)
    run.until("SandboxReady", "False", "Suspended")
    before = claim_of(run)

    assert towline("prompt", "talk", "And?", "--wait", "--timeout=120") == "read\n"

    assert run.said() == ["kept\n", "kept\n"], "and nothing of a new workspace"
    assert run.status["sandbox"]["name"].endswith("-2")
    after = claim_of(run)
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    run.delete()
    run.until_nothing_is_left(uid)
    until_claim_is_gone(run, uid)


def test_without_a_volume_the_file_is_gone_and_the_model_is_told_of_a_new_workspace(
    team: Team, towline: Towline
) -> None:
    run = talkative(team, team.sandbox_class(provider="pod"), WRITE, say("written"), READ, say("read"))
    until_asleep(run)
    told = run.until("SandboxReady", "False", "Released")

    towline("prompt", "talk", "And?", "--wait", "--timeout=120")

    assert "no workspace.volume to keep it in" in told["message"]
    first, second = run.said()
    assert first == "kept\n"
    assert second.startswith("[A new sandbox was started")
    assert "No such file" in second
    assert claim_of(run) is None


def test_a_workspace_outlives_suspension_and_is_gone_at_the_end_of_its_run(volumes: Volumes, team: Team) -> None:
    volumes.offer()
    steps = (WRITE, call("sleep 600"), READ, say("done"))
    run = keeping(team, "paused", class_with(team, volumes.name), *steps)
    run.until_event("agent.tool_use", 2)
    run.patch(suspend=True)
    run.until("Suspended", "True")
    until_no_pod(run)
    assert claim_of(run) is not None

    run.patch(suspend=False)
    run.wait(seconds=120)

    assert run.outcome() == ("Succeeded", "Completed")
    assert [each["outcome"] for each in run.results()] == ["ok", "unknown", "ok"]
    assert run.said()[2] == "kept\n"
    assert_whole(run.events())
    until_claim_is_gone(run, run.uid)


def test_a_workspace_outlives_a_sandbox_that_is_deleted_in_a_call(volumes: Volumes, team: Team) -> None:
    volumes.offer()
    steps = (WRITE, call("sleep 600"), READ, say("done"))
    run = keeping(team, "bereft", class_with(team, volumes.name), *steps)
    run.until_event("agent.tool_use", 2)
    sandbox = run.sandbox()
    assert sandbox is not None

    team.installation.kubectl.delete("pod", SANDBOXES, sandbox["metadata"]["name"], *AT_ONCE, "--wait=false")
    run.wait(seconds=120)

    assert run.outcome() == ("Succeeded", "Completed")
    assert [each["outcome"] for each in run.results()] == ["ok", "unknown", "ok"]
    assert "the workspace is kept" in run.said()[1]
    assert run.said()[2] == "kept\n"
    assert_whole(run.events())


def test_two_runs_of_one_class_have_a_volume_and_a_user_each(volumes: Volumes, team: Team) -> None:
    volumes.offer(2)
    name = class_with(team, volumes.name)
    steps = (call("id -u; id -g; mkdir -p deep/er; echo mine >deep/er/note; ls"), say("done"))
    runs = [
        keeping(team, each, name, *steps, interactive=True, idlePolicy={"suspendAfterSeconds": 1})
        for each in ("one", "two")
    ]
    for run in runs:
        run.wait("InputRequired", 120)

    claims = [claim_of(run) or {} for run in runs]
    places = [claim["spec"]["volumeName"] for claim in claims]
    assert sorted(places) == volumes.made
    for run, place in zip(runs, places, strict=True):
        user = sandbox_user(run.uid)
        assert run.said() == [f"{user}\n{user}\ndeep\n"]
        written = volumes.folder(place) / "workspace/deep/er/note"
        assert (written.stat().st_uid, written.stat().st_gid) == (user, user)


@pytest.mark.parametrize("storage_class", ["no-such-class", "no volume"])
def test_a_claim_that_gets_no_volume_is_told_with_its_cause_and_the_call_ends(
    volumes: Volumes, team: Team, storage_class: str
) -> None:
    name = storage_class if storage_class == "no-such-class" else volumes.name
    quick = class_with(team, name, startTimeoutSeconds=10)
    run = keeping(team, "unbound", quick, call("echo never"), say("gave up"))

    told = run.until("SandboxReady", "False", "VolumeNotBound")
    run.wait()

    cause = f"no volume for PersistentVolumeClaim {workspace_claim_name(run.uid)}: "
    assert told["message"].startswith(cause)
    assert told["message"].endswith(f"(StorageClass {name})")
    assert run.outcome() == ("Succeeded", "Completed")
    assert [each["outcome"] for each in run.results()] == ["error"]
    assert f"not started within 10 s: {cause}" in run.said()[0]
    until_claim_is_gone(run, run.uid)


def test_a_volume_that_the_sandbox_cannot_write_is_told_with_its_cause_and_the_call_ends(
    volumes: Volumes, team: Team
) -> None:
    volumes.offer(kind="hostPath")
    run = keeping(team, "locked-out", class_with(team, volumes.name), call("echo never"), say("gave up")).wait()

    assert [each["outcome"] for each in run.results()] == ["error"]
    user = sandbox_user(run.uid)
    cause = f"the volume cannot be used by user {user} with the groups [{user}]: [Errno 13] Permission denied"
    assert cause in run.said()[0]
    lost = [event.payload for event in run.events() if event.type == "sandbox.lost"]
    assert [each["reason"] for each in lost] == ["Exited"], "one sandbox for one call"
    until_claim_is_gone(run, run.uid)
