"""Which destinations stand for a network that ought to be closed."""

from towline.sandbox.forbidden import name_servers


def test_each_name_server_is_asked_both_ways():
    text = "search towline-system.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"

    assert name_servers(text) == ["udp:10.96.0.10:53", "tcp:10.96.0.10:53"]


def test_lines_that_name_none_are_passed_over():
    assert name_servers("# nothing\nnameserver\n\nnameserver fd00::a # ours\n") == ["udp:fd00::a:53", "tcp:fd00::a:53"]
