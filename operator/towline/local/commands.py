"""How gateway and harness are started: command line and the whole environment of each. Pure.

Called by `supervise.py`. Nothing of the user's environment is handed on, so no key can leak that way: credentials
stand in files of the runtime folder that only this user can read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from towline.events.event import RunRef

BASE_ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Files:
    """The credentials of one launcher, as files."""

    runtime: Path

    @property
    def identity_key(self) -> Path:
        """Signs the harness's tokens; read by launcher and gateway."""
        return self.runtime / "identity-key"

    @property
    def model_key(self) -> Path:
        """The model provider's API key; read by the harness."""
        return self.runtime / "model-key"

    def gateway_token(self, epoch: int) -> Path:
        """The token of one harness process."""
        return self.runtime / f"gateway-token-{epoch}"


def gateway_environment(*, redis_url: str, listener: int, secret: Path, files: Files, log_level: str) -> dict[str, str]:
    """Environment of `python -m towline.gateway`; `listener` is a listening socket that it inherits."""
    return {
        **BASE_ENVIRONMENT,
        "TOWLINE_REDIS_URL": redis_url,
        "TOWLINE_LISTEN": f"fd:{listener}",
        "TOWLINE_INSTALLATION_SECRET_FILE": str(secret),
        "TOWLINE_IDENTITY_KEY_FILE": str(files.identity_key),
        "TOWLINE_LOG_LEVEL": log_level,
    }


def harness_environment(
    *,
    redis_url: str,
    run: RunRef,
    epoch: int,
    gateway_url: str,
    files: Files,
    has_model_key: bool,
    trust: Mapping[str, str],
    log_level: str,
) -> dict[str, str]:
    """Environment of `python -m towline.harness`; `trust` names the machine's own CA certificates, if it has any."""
    environment = {
        **BASE_ENVIRONMENT,
        **trust,
        "TOWLINE_REDIS_URL": redis_url,
        "TOWLINE_RUN_NAMESPACE": run.namespace,
        "TOWLINE_RUN_UID": run.uid,
        "TOWLINE_EPOCH": str(epoch),
        "TOWLINE_GATEWAY_URL": gateway_url,
        "TOWLINE_GATEWAY_TOKEN_FILE": str(files.gateway_token(epoch)),
        "TOWLINE_LOG_LEVEL": log_level,
    }
    if has_model_key:
        environment["TOWLINE_MODEL_KEY_FILE"] = str(files.model_key)
    return environment
