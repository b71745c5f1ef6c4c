"""`python -m e2e.kills --seeds n [--points GLOB] [--jobs n]`, as `make kill-cluster SEEDS=n POINTS=glob`.

Needs root and the programs of `python -m e2e.cluster build`; E2E_CLUSTER, E2E_AS_IS and E2E_KEEP as for the tests
(e2e/settings.py). The last line is the counts, the exit code the verdict.
"""

import argparse
import asyncio
import fnmatch
import signal
import sys
from collections import Counter
from collections.abc import Sequence

from e2e.installation import Installation, installed
from e2e.kills.play import offer
from e2e.kills.points import POINTS
from e2e.kills.stage import stage
from e2e.kills.sweep import Kills, sweep


async def kill(installation: Installation, points: Sequence[str], seeds: int, jobs: int, tell: bool) -> Kills:
    async with stage(installation) as it:
        await asyncio.to_thread(offer, it)
        kills = await sweep(it, points, seeds, jobs, tell=tell)
        if it.ends:
            print(f"how the paused harnesses ended: {dict(Counter(it.ends))}")
        return kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.kills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--points", default="*", help="a glob over the names, e.g. 'gateway.*'")
    parser.add_argument("--jobs", type=int, default=3, help="runs at once, where only they themselves are killed")
    parser.add_argument("--tell", action="store_true", help="print what each run did")
    given = parser.parse_args()
    points = [point for point in POINTS if fnmatch.fnmatch(point, given.points)]
    if not points:
        parser.error(f"no point matches {given.points!r}; there are: {', '.join(POINTS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the machine is left as clean as after Ctrl-C
    with installed("kills") as installation:
        kills = asyncio.run(kill(installation, points, given.seeds, given.jobs, given.tell))
    for point in kills.tally.never_reached:
        print(f"never reached: {point}")
    print(kills.line())
    return 0 if kills.tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
