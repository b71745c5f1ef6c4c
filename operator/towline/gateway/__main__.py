"""The gateway process: seal, settings, logs, listen, serve until told to stop.

Started by the launcher or in a pod. It starts nothing itself: the seal makes that a fact before anything else loads.
"""

from towline.seal import seal_process

seal_process()

import asyncio  # noqa: E402
import gc  # noqa: E402
import logging  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

import uvicorn  # noqa: E402
import uvloop  # noqa: E402

from towline import failpoints, logs  # noqa: E402
from towline.errors import Invalid  # noqa: E402
from towline.gateway.app import gateway  # noqa: E402
from towline.gateway.listening import BoundedProtocol, listening_socket  # noqa: E402
from towline.settings import GatewaySettings, read  # noqa: E402

log = logging.getLogger("towline.gateway")

GRACE_SECONDS = 10
"""For answers in progress after SIGTERM. A longer call is not lost: its caller attaches again, elsewhere."""


MAX_CONNECTIONS = 4096
"""Connections or requests at once; above it callers are told to come back (503)."""


async def serve(settings: GatewaySettings) -> None:
    """Until SIGTERM or SIGINT."""
    socket = listening_socket(settings.listen)
    async with gateway(settings) as app:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            server_header=False,
            proxy_headers=False,  # nobody asks where a request came from, and whoever sends one is not believed
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        log.info("gateway started", extra={"fields": {"listen": settings.listen}})
        gc.collect()
        gc.freeze()  # what is loaded by now stays; no collection needs to walk it
        await uvicorn.Server(config).serve(sockets=[socket])
    log.info("gateway stopped")


def main() -> int:
    try:
        settings = read(GatewaySettings)
        failpoints.arm(settings.failpoint)
        logs.configure(settings.log_level, role="gateway")
        # uvicorn raises the signal again when it has stopped; without a handler that would be an exit by signal.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except Invalid as fault:
        print(fault, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
