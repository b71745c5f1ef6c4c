"""What the controller is given, and the configuration behind it."""

import json

import pytest

from tests.unit.manifests.given import CONFIG, RUN, snapshot
from towline.api.common import SecretRef
from towline.errors import Invalid
from towline.manifests.config import PodConfig
from towline.manifests.makers import PodMakers
from towline.naming import sandbox_key

SECRET = b"s" * 32


def env(pod: dict) -> dict[str, str]:
    return {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}


def test_a_sandbox_gets_the_key_of_its_name():
    pod = PodMakers(CONFIG, SECRET, ["tcp:10.0.0.1:443"]).sandbox_pod(RUN, snapshot(), 2)

    assert env(pod)["TOWLINE_SANDBOX_KEY"] == sandbox_key(SECRET, pod["metadata"]["name"])
    assert env(pod)["TOWLINE_FORBIDDEN"] == "tcp:10.0.0.1:443"


def test_what_is_forbidden_may_change():
    makers = PodMakers(CONFIG, SECRET)

    makers.forbidden = ("tcp:10.0.0.2:443",)

    assert env(makers.sandbox_pod(RUN, snapshot(), 2))["TOWLINE_FORBIDDEN"] == "tcp:10.0.0.2:443"


def test_equal_arguments_make_equal_pods():
    makers = PodMakers(CONFIG, SECRET)
    key = SecretRef(name="anthropic")

    assert makers.harness_pod(RUN, snapshot(), 1, key) == makers.harness_pod(RUN, snapshot(), 1, key)
    assert makers.sandbox_pod(RUN, snapshot(), 1) == makers.sandbox_pod(RUN, snapshot(), 1)


def test_the_policies_are_those_of_the_configured_namespaces():
    policies = PodMakers(CONFIG, SECRET).network_policies()

    assert [policy["metadata"]["name"] for policy in policies] == ["default-deny", "from-gateway", "to-internet"]
    assert {policy["metadata"]["namespace"] for policy in policies} == {"towline-sandboxes"}


def test_a_configuration_is_read_as_it_is_written():
    assert PodConfig.from_json(CONFIG.model_dump_json(by_alias=True)) == CONFIG


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"image": {"reference": "x", "pullPolicy": "Sometimes"}}, "sandbox.image.pullPolicy"),
        ({"longestSeconds": 0}, "sandbox.longestSeconds"),
        ({"surprise": 1}, "sandbox.surprise"),
        ({"placement": {}}, "sandbox.placement.nodeSelector"),
    ],
)
def test_a_fault_names_its_field(change, complaint):
    written = json.loads(CONFIG.model_dump_json(by_alias=True))
    written["sandbox"] |= change

    with pytest.raises(Invalid, match=complaint):
        PodConfig.from_json(json.dumps(written))


def test_no_json_is_a_fault_too():
    with pytest.raises(Invalid, match="the whole"):
        PodConfig.from_json("{")
