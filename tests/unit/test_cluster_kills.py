"""What is pure of the kills on a cluster (e2e/kills): who is armed how, and how long it took to the next event."""

from datetime import datetime

import pytest

from e2e.kills.acts import ACTS, PAUSE
from e2e.kills.arming import ARMED_LABEL, NAME, armed_pod, policy
from e2e.kills.figures import medians, seconds_to_next
from e2e.kills.points import FAILPOINTS, OUTSIDE, POINTS, alone, role, run_name, telling_run_name
from towline.events.event import Event, RunRef
from towline.failpoints import POINTS as KNOWN
from towline.naming import MAX_LABEL_CHARACTERS

KILLED = datetime.fromisoformat("2026-11-30T01:00:00.500Z")
DEPLOYMENT = {
    "metadata": {"name": "towline-gateway", "namespace": "towline-system"},
    "spec": {
        "template": {
            "metadata": {"labels": {"towline.dev/role": "gateway"}, "annotations": {"checksum": "1"}},
            "spec": {"containers": [{"name": "gateway", "env": [{"name": "A", "value": "1"}]}]},
        }
    },
}


def event(seq: int, second: str, src: str) -> Event:
    return Event(seq, f"ev_{seq}", "x.y", RunRef("default", "u"), None, f"2026-11-30T01:00:{second}Z", src, 1, b"{}")


LOG = [event(1, "00.400", "harness"), event(2, "01.500", "operator"), event(3, "04.500", "gateway")]


def test_there_are_twenty_points_and_more_of_every_role():
    assert len(POINTS) == len(set(POINTS)) > 20
    assert {role(point) for point in POINTS} == {"harness", "sandbox", "gateway", "operator"}
    assert set(FAILPOINTS) <= set(KNOWN)


def test_what_everybody_shares_is_killed_alone():
    assert alone("gateway.claim.after")
    assert alone("outside.operator.both")
    assert not alone("harness.turn.after")
    assert not alone("outside.sandbox.delete")


@pytest.mark.parametrize("point", [point for point in FAILPOINTS if role(point) == "harness"])
def test_a_run_s_name_fits_into_a_label_whole_and_names_point_and_hit_between_hyphens(point):
    name = run_name(point, 12, "25-abcd")

    assert len(name) <= MAX_LABEL_CHARACTERS
    assert name.split("-")[:3] == ["fp", point, "12"]
    assert telling_run_name("abcd").split("-")[0] == "tell"


def test_an_armed_pod_is_the_deployments_but_for_its_failpoint_and_that_it_stays_dead():
    pod = armed_pod(DEPLOYMENT, "gateway.claim.after:1", "abc")

    assert pod["metadata"] == {
        "annotations": {"checksum": "1"},
        "labels": {"towline.dev/role": "gateway", ARMED_LABEL: "armed"},
        "name": "towline-gateway-armed-abc",
        "namespace": "towline-system",
    }
    (container,) = pod["spec"]["containers"]
    assert container["env"][1:] == [{"name": "TOWLINE_FAILPOINT", "value": "gateway.claim.after:1"}]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert len(DEPLOYMENT["spec"]["template"]["spec"]["containers"][0]["env"]) == 1, "what is given is not changed"


def test_only_harnesses_of_runs_in_namespaces_of_ours_are_touched():
    made, binding = policy()

    (condition,) = made["spec"]["matchConditions"]
    assert f".startsWith('{NAME}-')" in condition["expression"]
    assert made["spec"]["matchConstraints"]["objectSelector"] == {"matchLabels": {"towline.dev/role": "harness"}}
    assert binding["spec"]["policyName"] == made["metadata"]["name"]


def test_the_next_event_is_the_first_one_later_than_the_kill():
    assert seconds_to_next(LOG, KILLED) == 1.0
    assert seconds_to_next(LOG, KILLED, ("harness", "gateway")) == 4.0
    assert seconds_to_next(LOG[:1], KILLED) is None, "the run had ended"


def test_medians_are_told_over_all_and_by_role():
    assert medians({"harness": [1.0, 2.0, 3.0], "operator": [20.0], "gateway": []}) == (
        "2.50 (harness 2.00, operator 20.00)"
    )
    assert medians({}) == "-"


def test_every_kill_from_outside_says_what_is_done():
    assert {*ACTS, PAUSE} == set(OUTSIDE)
