"""What a token must say of itself, and the API server of it, before it stands for a harness pod."""

import base64
import json
from typing import Any

import pytest

from towline.errors import Unauthenticated
from towline.gateway.token_review import expiry_of, pod_of

USERNAME = "system:serviceaccount:towline-harness:towline-harness"


def token(**claims: Any) -> str:
    payload = {"aud": ["towline-gateway"], "exp": 2000, **claims}
    return f"header.{base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip('=')}.signature"


def reviewed(**changes: Any) -> dict[str, Any]:
    user = {"username": USERNAME, "extra": {"authentication.kubernetes.io/pod-name": ["run-1-1"]}}
    return {"authenticated": True, "audiences": ["towline-gateway"], "user": user, **changes}


def of_user(**changes: Any) -> dict[str, Any]:
    return reviewed(user={**reviewed()["user"], **changes})


def test_a_tokens_expiry_is_read():
    assert expiry_of(token()) == 2000.0


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "opaque",
        "a.b",
        "a.b.c",
        "a.bm8.c",
        token(aud="towline-gateway"),
        token(aud=["https://kubernetes.default.svc"]),
        token(aud=None),
        token(exp=None),
        token(exp="2000"),
        token(exp=True),
        token(padding="x" * 10_000),
    ],
)
def test_what_cannot_be_one_of_our_tokens_is_refused_without_a_review(bad):
    with pytest.raises(Unauthenticated):
        expiry_of(bad)


def test_a_review_names_the_pod():
    assert pod_of(reviewed(), USERNAME) == "run-1-1"


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ({}, "no reason given"),
        (reviewed(authenticated=False, error="token has been invalidated"), "token has been invalidated"),
        (reviewed(authenticated="true"), "refused by the API server"),
        (reviewed(audiences=[]), "did not check the audience"),
        (reviewed(audiences=None), "did not check the audience"),
        (reviewed(audiences=["other"]), "did not check the audience"),
        (of_user(username="system:serviceaccount:team-a:towline-harness"), "expected system:serviceaccount:towline"),
        (of_user(username="system:serviceaccount:towline-harness:default"), "expected system:serviceaccount:towline"),
        (of_user(username="admin"), "expected system:serviceaccount:towline"),
        (of_user(extra={}), "not bound to a pod"),
        (of_user(extra=None), "not bound to a pod"),
        (of_user(extra={"authentication.kubernetes.io/pod-name": ["a", "b"]}), "not bound to a pod"),
        (of_user(extra={"authentication.kubernetes.io/pod-name": "run-1-1"}), "not bound to a pod"),
    ],
)
def test_any_other_answer_is_a_refusal(status, complaint):
    with pytest.raises(Unauthenticated, match=complaint):
        pod_of(status, USERNAME)
