"""Every reason that a process of ours ends a run with is in the documented list."""

import re
from pathlib import Path

from towline.api.conditions import OUTCOMES

PACKAGE = Path(__file__).parents[2] / "operator" / "towline"
WRITTEN = re.compile(
    r'(?:\bFail\(|\((?="[A-Za-z]+LimitReached)|_failed\(seen, |^    reason = |^[A-Z_]+ = )"([A-Z][A-Za-z]+)"',
    re.MULTILINE,
)


def test_the_reasons_of_harness_and_launcher_are_documented() -> None:
    sources = [
        path.read_text(encoding="utf-8") for part in ("harness", "local") for path in (PACKAGE / part).rglob("*.py")
    ]
    written = {reason for source in sources for reason in WRITTEN.findall(source)}
    assert {"TurnLimitReached", "CostLimitReached"} <= written
    written -= {"HarnessLost", "Interrupted"}  # why an answer broke off, which ends no run
    assert written <= set(OUTCOMES), written - set(OUTCOMES)
