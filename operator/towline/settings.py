"""The one reader of the environment: turns variables into frozen, typed settings, once, in a process's main.

Each role has its own dataclass; `read` fills it and stops the process with every fault listed. It knows no defaults
that depend on the machine.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from towline import failpoints
from towline.errors import Invalid
from towline.failpoints import Armed

T = TypeVar("T")


def setting(
    variable: str,
    parse: Callable[[str], Any] = str,
    default: Any = MISSING,
    *,
    unless: tuple[str, str] | None = None,
) -> Any:
    """A settings field read from `variable`; without a default the variable is required.

    With `unless`, a variable and a value, it is required too, unless that other one has that value.
    """
    return field(default=default, metadata={"variable": variable, "parse": parse, "unless": unless})


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise ValueError("expected a whole number from 1")
    return number


def level(text: str) -> str:
    """A log level's name."""
    if text.lower() not in ("debug", "info", "warning", "error"):
        raise ValueError("expected debug, info, warning or error")
    return text.lower()


def identity_mode(text: str) -> str:
    """How a gateway learns who calls."""
    if text not in ("local", "token-review"):
        raise ValueError("expected local or token-review")
    return text


def names(text: str) -> tuple[str, ...]:
    """Words separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSettings:
    """What a harness process is told. It holds no secret: credentials stand in files."""

    redis_url: str = setting("TOWLINE_REDIS_URL")
    """Event store: redis://, rediss://, unix:// or redis+cluster://."""
    namespace: str = setting("TOWLINE_RUN_NAMESPACE")
    uid: str = setting("TOWLINE_RUN_UID")
    epoch: int = setting("TOWLINE_EPOCH", positive)
    """The fence: one per harness process, granted by the operator, never reused."""
    gateway_url: str = setting("TOWLINE_GATEWAY_URL")
    """The gateway's MCP endpoint, `http://host:port/mcp`."""
    gateway_token_file: Path = setting("TOWLINE_GATEWAY_TOKEN_FILE", Path)
    """Read again for each request: the kubelet rotates it in place."""
    model_key_file: Path | None = setting("TOWLINE_MODEL_KEY_FILE", Path, None)
    """The provider's API key; absent for providers that need none."""
    failpoint: Armed | None = setting("TOWLINE_FAILPOINT", failpoints.parse, None)
    """For tests: where this process is to die, see `failpoints.py`."""
    log_level: str = setting("TOWLINE_LOG_LEVEL", level, "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway process is told."""

    redis_url: str = setting("TOWLINE_REDIS_URL")
    listen: str = setting("TOWLINE_LISTEN", str, "tcp:0.0.0.0:8080")
    """`tcp:HOST:PORT`, or `fd:N` for a listening socket that the parent process opened."""
    installation_secret_file: Path = setting("TOWLINE_INSTALLATION_SECRET_FILE", Path)
    """Secret from which every sandbox's key is derived; shared with the operator alone."""
    identity: str = setting("TOWLINE_IDENTITY_MODE", identity_mode, "local")
    """`local`: tokens of the launcher. `token-review`: the API server says which harness pod a token is of."""
    identity_key_file: Path | None = setting(
        "TOWLINE_IDENTITY_KEY_FILE", Path, None, unless=("TOWLINE_IDENTITY_MODE", "token-review")
    )
    """Key of the local token issuer; needed for `local`."""
    api_server: str = setting("TOWLINE_API_SERVER", str, "https://kubernetes.default.svc")
    """This and the next three are for `token-review`."""
    service_account_folder: Path = setting(
        "TOWLINE_SERVICE_ACCOUNT_FOLDER", Path, Path("/var/run/secrets/kubernetes.io/serviceaccount")
    )
    """The gateway's own credentials at the API server."""
    harness_namespace: str = setting("TOWLINE_HARNESS_NAMESPACE", str, "towline-harness")
    harness_service_account: str = setting("TOWLINE_HARNESS_SERVICE_ACCOUNT", str, "towline-harness")
    allowed_hosts: tuple[str, ...] = setting("TOWLINE_ALLOWED_HOSTS", names, ())
    """Host names, without ports, under which callers reach the gateway; those of the own machine always work."""
    failpoint: Armed | None = setting("TOWLINE_FAILPOINT", failpoints.parse, None)
    """For tests: where this process is to die, see `failpoints.py`."""
    log_level: str = setting("TOWLINE_LOG_LEVEL", level, "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """What an operator process is told."""

    redis_url: str = setting("TOWLINE_REDIS_URL")
    pods_file: Path = setting("TOWLINE_PODS_FILE", Path)
    """What the installation decides about its pods, JSON; `manifests/config.py` reads it."""
    installation_secret_file: Path = setting("TOWLINE_INSTALLATION_SECRET_FILE", Path)
    """Secret from which every sandbox's key is derived; shared with the gateway alone."""
    kubeconfig: Path | None = setting("KUBECONFIG", Path, None)
    """Credentials outside a cluster; absent: the pod's service account."""
    system_namespace: str = setting("TOWLINE_SYSTEM_NAMESPACE", str, "towline-system")
    """Holds the Lease, and the templates that every namespace may use."""
    harness_namespace: str = setting("TOWLINE_HARNESS_NAMESPACE", str, "towline-harness")
    sandbox_namespace: str = setting("TOWLINE_SANDBOX_NAMESPACE", str, "towline-sandboxes")
    lease: str = setting("TOWLINE_LEASE", str, "towline-operator")
    identity: str = setting("TOWLINE_IDENTITY", str, "")
    """Name of this process in the Lease, the pod's; a random part makes it unique."""
    health_port: int = setting("TOWLINE_HEALTH_PORT", positive, 8081)
    """Serves /healthz, /readyz and /metrics on all addresses."""
    finished_pod_seconds: int = setting("TOWLINE_FINISHED_POD_SECONDS", int, 300)
    """How long an ended harness pod is kept after the end of its run, so that `kubectl logs` still has it."""
    sweep_seconds: int = setting("TOWLINE_SWEEP_SECONDS", positive, 30)
    """A lost watch event is healed no later."""
    failpoint: Armed | None = setting("TOWLINE_FAILPOINT", failpoints.parse, None)
    """For tests: where this process is to die, see `failpoints.py`."""
    log_level: str = setting("TOWLINE_LOG_LEVEL", level, "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """What a Job of the chart is told."""

    kubeconfig: Path | None = setting("KUBECONFIG", Path, None)
    harness_namespace: str = setting("TOWLINE_HARNESS_NAMESPACE", str, "towline-harness")
    sandbox_namespace: str = setting("TOWLINE_SANDBOX_NAMESPACE", str, "towline-sandboxes")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What `towline` on a laptop takes from the user's environment."""

    anthropic_api_key: str = setting("ANTHROPIC_API_KEY", str, "")
    anthropic_base_url: str = setting("ANTHROPIC_BASE_URL", str, "")
    openai_api_key: str = setting("OPENAI_API_KEY", str, "")
    openai_base_url: str = setting("OPENAI_BASE_URL", str, "")
    model: str = setting("TOWLINE_MODEL", str, "")
    """Model name that goes with the key; the default is the provider's, see `local/models.py`."""
    state_home: Path = setting("XDG_STATE_HOME", Path, Path("~/.local/state"))
    cache_home: Path = setting("XDG_CACHE_HOME", Path, Path("~/.cache"))
    kubeconfig: Path = setting("KUBECONFIG", Path, Path("~/.kube/config"))
    """For the verbs that can ask a cluster."""
    no_color: str = setting("NO_COLOR", str, "")
    ssl_cert_file: str = setting("SSL_CERT_FILE", str, "")
    """The machine's own certificate authorities; handed to the harness, as is the next."""
    ssl_cert_dir: str = setting("SSL_CERT_DIR", str, "")


def read(kind: type[T], environment: Mapping[str, str] | None = None) -> T:
    """Settings of `kind` from the environment (this process's unless given).

    Raises Invalid with one sentence for each missing or malformed variable. An empty variable counts as absent.
    """
    variables = os.environ if environment is None else environment  # noqa: TID251 - the one reader
    values: dict[str, Any] = {}
    problems: list[str] = []
    for each in fields(kind):  # type: ignore[arg-type]  # T is always one of the dataclasses above
        variable, parse = each.metadata["variable"], each.metadata["parse"]
        text = variables.get(variable, "")
        if not text:
            unless = each.metadata["unless"]
            if each.default is MISSING or (unless is not None and variables.get(unless[0]) != unless[1]):
                problems.append(f"{variable} is not set: {kind.__name__} needs it")
            continue
        try:
            values[each.name] = parse(text)
        except ValueError as fault:
            problems.append(f"{variable}={text!r}: {fault}")
    if problems:
        raise Invalid(*problems)
    return kind(**values)
