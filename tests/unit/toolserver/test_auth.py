"""Both sides show that they hold the key, and what they show is worth nothing anywhere else."""

import hashlib
import hmac

import pytest

from towline.toolserver.auth import Keyholder

KEY = "0123456789abcdef" * 4


def mac(text: str, key: str = KEY) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def test_the_proof_is_bound_to_nonce_and_instance() -> None:
    holder = Keyholder(KEY.encode())
    nonce = "ab" * 16
    assert holder.proof(nonce) == mac(f"towline-toolserver:{nonce}:{holder.instance}")


@pytest.mark.parametrize("nonce", ["", "ab" * 7, "xy" * 16, "ab" * 65, "ab" * 16 + "\n"])
def test_a_malformed_nonce_is_refused(nonce: str) -> None:
    with pytest.raises(ValueError, match="nonce"):
        Keyholder(KEY.encode()).proof(nonce)


def test_only_the_value_for_this_instance_is_admitted() -> None:
    holder, other = Keyholder(KEY.encode()), Keyholder(KEY.encode())
    right = mac("towline-gateway:" + holder.instance)
    assert holder.admits(f"Towline {right}")
    assert holder.instance != other.instance
    for wrong in ("", right, f"towline {right}", f"Towline {right} ", f"Towline {right[:-1]}", "Towline é"):
        assert not holder.admits(wrong)
    assert not other.admits(f"Towline {right}")
    assert not holder.admits("Towline " + mac("towline-gateway:" + holder.instance, KEY[::-1]))
