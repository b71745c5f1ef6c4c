"""Which destinations a sandbox must not reach, as the environment lists them."""

import socket

import pytest

from towline.toolserver.__main__ import read_settings
from towline.toolserver.netcheck import Destination, parse_destinations

GIVEN = {"TOWLINE_LISTEN": "fd:5", "TOWLINE_SANDBOX_KEY": "ab" * 32}


def test_addresses_of_both_families_and_protocols_are_read() -> None:
    assert parse_destinations("tcp:10.0.0.1:443, udp:fd00::a:53,tcp:[fd00::a]:6443", "") == (
        Destination(socket.SOCK_STREAM, socket.AF_INET, "10.0.0.1", 443),
        Destination(socket.SOCK_DGRAM, socket.AF_INET6, "fd00::a", 53),
        Destination(socket.SOCK_STREAM, socket.AF_INET6, "fd00::a", 6443),
    )


def test_the_kubelet_of_the_own_node_is_one_of_them() -> None:
    assert [str(each) for each in parse_destinations("udp:10.0.0.2:53", "10.0.0.9")] == [
        "udp:10.0.0.2:53",
        "tcp:10.0.0.9:10250",
    ]


def test_one_that_is_listed_twice_is_tried_once() -> None:
    assert len(parse_destinations("tcp:10.0.0.9:10250,tcp:10.0.0.9:10250", "10.0.0.9")) == 1


@pytest.mark.parametrize(
    "word",
    [
        "tcp:redis:6379",
        "10.0.0.1:443",
        "sctp:10.0.0.1:1",
        "tcp:10.0.0.1",
        "tcp:10.0.0.1:0",
        "tcp:10.0.0.1:65536",
        "tcp",
    ],
)
def test_anything_else_stops_the_start_and_says_what_is_expected(word: str) -> None:
    with pytest.raises(ValueError, match="expected tcp:ADDRESS:PORT"):
        read_settings({**GIVEN, "TOWLINE_FORBIDDEN": word})


def test_without_a_list_nothing_is_tried() -> None:
    settings = read_settings(GIVEN)
    assert (settings.forbidden, settings.netcheck_seconds) == ((), 20)


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "1.5"])
def test_a_deadline_is_a_whole_number_of_seconds(seconds: str) -> None:
    with pytest.raises(ValueError, match="TOWLINE_NETCHECK_SECONDS"):
        read_settings({**GIVEN, "TOWLINE_NETCHECK_SECONDS": seconds})
