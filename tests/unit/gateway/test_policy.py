import pytest

from towline.api.snapshot import Policy, Rule
from towline.gateway.policy import Decision, decide

KNOWN = ("exec", "read_file")
ALLOW_EXEC, DENY_EXEC = Rule(tool="exec", action="Allow"), Rule(tool="exec", action="Deny")


@pytest.mark.parametrize(
    ("policy", "tool", "decision"),
    [
        (Policy(), "exec", Decision("Deny", "default")),
        (Policy(default="Allow"), "exec", Decision("Allow", "default")),
        (Policy(rules=(ALLOW_EXEC,)), "exec", Decision("Allow", "rules[0]: exec")),
        (Policy(rules=(ALLOW_EXEC,)), "read_file", Decision("Deny", "default")),
        (Policy(default="Allow", rules=(DENY_EXEC,)), "exec", Decision("Deny", "rules[0]: exec")),
        (Policy(rules=(DENY_EXEC, ALLOW_EXEC)), "exec", Decision("Deny", "rules[0]: exec")),
        (Policy(rules=(ALLOW_EXEC, DENY_EXEC)), "exec", Decision("Allow", "rules[0]: exec")),
        (
            Policy(rules=(Rule(tool="read_file", action="Deny"), ALLOW_EXEC)),
            "exec",
            Decision("Allow", "rules[1]: exec"),
        ),
        # Names are names: neither case nor patterns nor prefixes match.
        (Policy(rules=(ALLOW_EXEC,)), "Exec", Decision("Deny", "unknown tool")),
        (Policy(default="Allow"), "bash", Decision("Deny", "unknown tool")),
        (Policy(rules=(Rule(tool="*", action="Allow"),)), "exec", Decision("Deny", "default")),
        (Policy(rules=(Rule(tool="bash", action="Allow"),)), "bash", Decision("Deny", "unknown tool")),
    ],
)
def test_the_first_rule_that_names_an_offered_tool_decides_else_the_default(policy, tool, decision):
    assert decide(policy, tool, KNOWN) == decision
