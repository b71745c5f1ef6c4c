"""Entry of the operator: `python -m towline.controller`, settings from the environment.

The seal comes before every other import: the operator starts no program either. Exit codes: 0 after SIGTERM, 1 when it
could not start or may not go on; the kubelet then starts it anew.
"""

from towline.seal import seal_process

seal_process()

import asyncio  # noqa: E402 - nothing is imported before the seal
import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402

from towline import failpoints, logs, settings  # noqa: E402
from towline.errors import Invalid  # noqa: E402


def main() -> NoReturn:
    """Run one operator and end the process with its exit code."""
    try:
        given = settings.read(settings.OperatorSettings)
        failpoints.arm(given.failpoint)
        logs.configure(given.log_level, role="operator")
        # Kopf tells of each event it handles; what matters of them we tell ourselves.
        logging.getLogger("kopf").setLevel(logging.WARNING)
        code = asyncio.run(_run(given))
    except Invalid as fault:
        logs.configure("info", role="operator")
        for problem in fault.problems:
            logging.error(problem)
        code = 1
    except Exception:
        logging.exception("operator crashed")
        code = 1
    _end(code)


async def _run(given: settings.OperatorSettings) -> int:
    from towline.controller.installed import installed
    from towline.controller.memory import settle_imports
    from towline.controller.process import Operator

    settle_imports()
    stop = asyncio.Event()

    def claim_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)

    claim_signals()
    ours = installed(given)
    operator = Operator(
        settings=given, manifests=ours.makers, refresh=ours.refresh, stop=stop, claim_signals=claim_signals
    )
    return 0 if await operator.run() else 1


def _end(code: int) -> NoReturn:
    """At once, whatever thread still hangs: a process that lost its lease must not linger."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
