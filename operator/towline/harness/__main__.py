"""Entry of the harness: `python -m towline.harness`, once per epoch of a run, settings from the environment.

The seal comes before every other import. Exit codes: docs/harness.md.
"""

from towline.seal import seal_process

sealed = seal_process()

import asyncio  # noqa: E402 - nothing is imported before the seal
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from towline import failpoints, logs, settings  # noqa: E402
from towline.errors import Invalid  # noqa: E402


def main() -> NoReturn:
    """Run one harness and end the process with its exit code."""
    try:
        given = settings.read(settings.HarnessSettings)
    except Invalid as fault:
        logs.configure("info", role="harness")
        for problem in fault.problems:
            logging.error(problem)
        _end(1)
    failpoints.arm(given.failpoint)
    logs.configure(given.log_level, role="harness", run=f"{given.namespace}/{given.uid}", epoch=given.epoch)
    try:
        from towline.harness import process

        code = int(asyncio.new_event_loop().run_until_complete(process.run(given, sealed)))
    except Exception:
        logging.exception("harness crashed")
        code = 1
    _end(code)


def _end(code: int) -> NoReturn:
    """At once: a resolver thread that hangs in a name lookup would hold up an ordinary exit for seconds."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
