from datetime import timedelta

import jwt
import pytest

from towline.clock import utc_now
from towline.errors import Invalid, Unauthenticated
from towline.gateway.identity import CachedIdentity, Principal, bearer
from towline.gateway.local_identity import LocalIdentity, mint, read_key

KEY = b"k" * 64
NOW = utc_now()
"""When the tests were collected: what must still hold at the end of a long suite is an hour away."""
CLAIMS = {
    "iss": "towline-local",
    "aud": "towline-gateway",
    "sub": "team-a/0b1c",
    "epoch": 3,
    "exp": NOW + timedelta(hours=1),
}


def signed(key: bytes | None = KEY, algorithm: str = "HS256", **changes: object) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm)


async def test_what_was_minted_names_the_run_and_its_epoch():
    token = mint(KEY, namespace="team-a", uid="0b1c", epoch=3, now=NOW, lifetime=timedelta(hours=1))

    principal = await LocalIdentity(KEY).verify(token)

    assert (principal.namespace, principal.uid, principal.epoch) == ("team-a", "0b1c", 3)
    assert principal.expires == pytest.approx((NOW + timedelta(hours=1)).timestamp(), abs=1)


@pytest.mark.parametrize("jump", [timedelta(minutes=-10), timedelta(minutes=10)])
async def test_a_clock_that_jumped_since_a_token_was_minted_does_not_matter(jump):
    token = mint(KEY, namespace="team-a", uid="0b1c", epoch=3, now=NOW + jump, lifetime=timedelta(hours=1))

    assert (await LocalIdentity(KEY).verify(token)).epoch == 3


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b.c",
        signed(b"z" * 64),
        signed(None, "none"),
        signed(algorithm="HS512"),
        signed(exp=NOW - timedelta(minutes=1)),
        signed(exp=None),
        signed(aud=None),
        signed(aud="https://kubernetes.default.svc"),
        signed(aud=[]),
        signed(iss=None),
        signed(iss="somebody"),
        signed(sub=None),
        signed(sub="team-a"),
        signed(sub="team-a/"),
        signed(sub="team-a/x/y"),
        signed(sub="team-a/{x}"),
        signed(sub="team-a/x\n"),
        signed(sub="../x/y"),
        signed(epoch=None),
        signed(epoch=0),
        signed(epoch="3"),
        signed(epoch=True),
        signed(nbf=NOW + timedelta(hours=1)),
    ],
)
async def test_any_other_token_is_refused(token):
    with pytest.raises(Unauthenticated):
        await LocalIdentity(KEY).verify(token)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_a_header_without_a_bearer_token_is_refused(header):
    with pytest.raises(Unauthenticated):
        bearer(header)


def test_the_scheme_is_read_in_any_case():
    assert bearer("bearer abc") == "abc"


class Counting:
    """An identity that knows every token, for ten seconds from 0."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def verify(self, token: str) -> Principal:
        self.asked.append(token)
        if token == "bad":
            raise Unauthenticated("no")
        return Principal("n", token, 1, 10.0)


async def test_a_token_is_asked_for_once_until_it_expires():
    now, inner = [0.0], Counting()
    identity = CachedIdentity(inner, clock=lambda: now[0])

    await identity.verify("a")
    assert (await identity.verify("a")).uid == "a"
    now[0] = 10.0
    await identity.verify("a")

    assert inner.asked == ["a", "a"]


async def test_a_refusal_is_not_remembered():
    inner = Counting()
    identity = CachedIdentity(inner, clock=lambda: 0.0)

    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await identity.verify("bad")

    assert inner.asked == ["bad", "bad"]


async def test_the_cache_forgets_the_token_that_was_unused_longest():
    inner = Counting()
    identity = CachedIdentity(inner, clock=lambda: 0.0, size=2)

    for token in ("a", "b", "a", "c", "a", "b"):
        await identity.verify(token)

    assert inner.asked == ["a", "b", "c", "b"]


def test_a_key_is_read_without_white_space_and_refused_when_short(tmp_path):
    (tmp_path / "key").write_bytes(KEY + b"\n")
    (tmp_path / "short").write_bytes(b"k" * 31)

    assert read_key(tmp_path / "key") == KEY
    with pytest.raises(Invalid, match="31 bytes"):
        read_key(tmp_path / "short")
