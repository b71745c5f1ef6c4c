"""The makers of pods and policies as this installation wants them, out of the files that the chart mounts.

Called by `__main__.py`. What no sandbox may reach is looked up at the API server and kept fresh: addresses change.
"""

from dataclasses import dataclass

from towline.errors import Invalid
from towline.kube.client import Kube
from towline.manifests.config import PodConfig
from towline.manifests.makers import PodMakers
from towline.sandbox.forbidden import forbidden_destinations
from towline.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Installed:
    """`makers` are what the controller is given; `refresh` is called before the first sandbox and now and then."""

    makers: PodMakers
    redis_url: str

    async def refresh(self, kube: Kube) -> None:
        """Raises Unreachable or Refused; what was known stays in use."""
        config = self.makers.config
        self.makers.forbidden = await forbidden_destinations(
            kube,
            redis_url=self.redis_url,
            gateway_url=config.harness.gateway_url,
            also=config.sandbox.forbidden,
        )


def installed(settings: OperatorSettings) -> Installed:
    """Raises Invalid with every fault of the two files."""
    try:
        config = PodConfig.from_json(settings.pods_file.read_bytes())
        secret = settings.installation_secret_file.read_bytes().strip()
    except OSError as fault:
        raise Invalid(f"{fault.filename}: cannot be read: {fault.strerror}") from fault
    if len(secret) < 32:
        raise Invalid(f"{settings.installation_secret_file}: holds {len(secret)} bytes; expected at least 32")
    return Installed(PodMakers(config, secret), settings.redis_url)
