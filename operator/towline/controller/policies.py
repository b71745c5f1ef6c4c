"""The network policies of the sandbox namespace: put back when they are gone, and known to be there or not.

Called at start, by the handlers when one changes, and by the sweep. While one is missing no sandbox is made; nor before
it is known what a sandbox must find closed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from towline import failpoints
from towline.errors import TowlineError
from towline.kube.client import Kube, Object
from towline.kube.kinds import NETWORK_POLICY

log = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0


@dataclass(kw_only=True)
class Policies:
    kube: Kube
    wanted: Sequence[Object]
    refresh: Callable[[Kube], Awaitable[None]]
    """Looks up what no sandbox may reach. Has to succeed once; later failures leave what is known in use."""
    restored: Callable[[], None]
    """Called when sandboxes may be made again."""
    in_force: bool = False
    _refreshed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def look(self) -> None:
        """Something may have changed."""
        self._changed.set()

    async def ensure(self) -> None:
        """Applies those that are not as they should be; from seeing one until it is back `in_force` is False.

        Raises errors of our family, which change nothing of that.
        """
        for policy in self.wanted:
            metadata = policy["metadata"]
            found = await self.kube.get(NETWORK_POLICY, metadata["namespace"], metadata["name"])
            if found is None or found.get("spec") != policy["spec"]:
                self.in_force = False
                failpoints.hit("operator.policy.before")
                await self.kube.apply(policy)
                failpoints.hit("operator.policy.after")
                fields = {
                    "policy": f"{metadata['namespace']}/{metadata['name']}",
                    "was": "changed" if found else "gone",
                }
                log.warning("network policy restored", extra={"fields": fields})
        try:
            await self.refresh(self.kube)
            self._refreshed = True
        except TowlineError as fault:
            log.warning("forbidden destinations not looked up", extra={"fields": {"cause": str(fault)}})
            if not self._refreshed:
                raise
        if not self.in_force:
            self.in_force = True
            self.restored()

    async def run(self) -> None:
        """Until cancelled: puts right what changes."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.ensure()
            except TowlineError as fault:
                log.warning("network policies not checked", extra={"fields": {"cause": str(fault)}})
                self._changed.set()
                await asyncio.sleep(PAUSE_SECONDS)
