"""May this tool be called: one pure function over the snapshot's policy.

`calls.py` asks for every call, unknown names included, and records the answer with it. It looks at names only: a rule
on the text of a shell command would be a promise that no prefix match can keep.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from towline.api.snapshot import Policy


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a call, and the rule that said so, in words a person finds in the template again."""

    action: Literal["Allow", "Deny"]
    rule: str

    @property
    def allowed(self) -> bool:
        return self.action == "Allow"


UNKNOWN_TOOL = "unknown tool"


def decide(policy: Policy, tool: str, known: Collection[str]) -> Decision:
    """The first rule that names the tool decides, else the default. A tool the run is not offered is never allowed."""
    if tool not in known:
        return Decision("Deny", UNKNOWN_TOOL)
    for position, rule in enumerate(policy.rules):
        if rule.tool == tool:
            return Decision(rule.action, f"rules[{position}]: {rule.tool}")
    return Decision(policy.default, "default")
