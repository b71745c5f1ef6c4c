from hypothesis import given
from hypothesis import strategies as st

from towline.gateway.exchange import ToolRequest
from towline.gateway.forward import order
from towline.gateway.strict_json import canonical, loads
from towline.toolserver.protocol import parse_body

TEXT = st.text()
ARGUMENTS = st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.lists(TEXT, max_size=3), max_size=5)


@given(ARGUMENTS)
def test_the_tool_server_reads_exactly_the_arguments_that_the_policy_saw(arguments):
    """A request parsed twice by two parsers is how a check is walked around; here is one value and one spelling."""
    seen = loads(canonical({"params": {"arguments": arguments}}))["params"]["arguments"]

    body = parse_body(order(ToolRequest("tc_1", "exec", seen), 120))

    assert body == {"tool": "exec", "arguments": arguments, "timeout_seconds": 120}


def test_the_same_call_has_the_same_body_on_every_gateway():
    one = ToolRequest("tc_1", "exec", {"command": "ls", "cwd": "a"})
    two = ToolRequest("tc_1", "exec", {"cwd": "a", "command": "ls"})

    assert order(one, 5) == order(two, 5)
