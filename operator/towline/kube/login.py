"""Credentials: the pod's own service account, or a kubeconfig where there is none.

Called by the mains and by the Kopf login handler, so that both clients speak with the same identity. Tokens that
rotate are read again by the client library, each minute.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kubernetes.aio import config as loaders
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration as Configuration
from kubernetes.aio.config.config_exception import ConfigException
from yaml import YAMLError

from towline.errors import Invalid

CONNECTIONS = 10
"""Of one client to the API server: a burst waits here instead of loading the server. Watches have their own, and so has
the operator's Lease, which must not wait behind a burst."""


async def configuration(kubeconfig: Path | None, context: str | None = None) -> Configuration:
    """From `kubeconfig` if given, else from the pod's service account. Raises Invalid when there is neither, or none
    that can be read.

    `context` is one of the kubeconfig's; None for its current one.
    """
    found = Configuration()
    with _faults_told(f"kubeconfig {kubeconfig}" if kubeconfig else "service account of this pod"):
        if kubeconfig is not None:
            await loaders.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), context=context, client_configuration=found, persist_config=False
            )
        else:
            loaders.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    found.connection_pool_maxsize = CONNECTIONS
    found.retries = None
    return found


def namespace(kubeconfig: Path, context: str | None = None) -> str:
    """The one that a context of a kubeconfig is for. Raises Invalid when it cannot be read."""
    with _faults_told(f"kubeconfig {kubeconfig}"):
        contexts, current = loaders.list_kube_config_contexts(str(kubeconfig))  # type: ignore[no-untyped-call]
        chosen = next((each for each in contexts if each["name"] == context), current)
        return str((chosen.get("context") or {}).get("namespace") or "default")


@contextmanager
def _faults_told(where: str) -> Iterator[None]:
    """Whatever the client library's loader stumbles over is a fault of the file: it checks little before it reads."""
    try:
        yield
    except (ConfigException, YAMLError, OSError, ValueError) as fault:
        raise Invalid(f"{where}: {' '.join(str(fault).split())}") from fault
    except (AttributeError, LookupError, TypeError) as fault:
        raise Invalid(f"{where}: it is no kubeconfig") from fault


def client(credentials: Configuration) -> ApiClient:
    """A client with these credentials; no request yet."""
    return ApiClient(credentials)
