"""The cluster of the end-to-end tests, towline on it, and a namespace for each test; settings.py tells what can be set.

One cluster and one installation serve the whole session. When a test fails, its report says what the cluster says.
"""

import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import evidence, sandbox_image
from e2e import installation as installing
from e2e.cluster import build, lifecycle, places, registry
from e2e.cluster.layout import Cluster
from e2e.cluster.shell import Failed, run
from e2e.installation import Installation
from e2e.kubectl import Kubectl
from e2e.runs import Team, Towline
from e2e.settings import settings
from images import build as images
from towline.kube import login
from towline.kube.client import Kube

NAME = "e2e"

Apply = Callable[..., None]


def pytest_configure() -> None:
    """A CI that ends us by SIGTERM gets its machine back as clean as after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def built() -> bool:
    try:
        build.built()
    except Failed:
        return False
    return os.geteuid() == 0


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes, with the images of tool server and sandbox on the one for sandboxes."""
    if settings().kubeconfig is not None:
        pytest.skip("needs a hand in the nodes: not on a cluster of your own")
    if not built():
        pytest.skip("needs root, and `python -m e2e.cluster build`")
    given = settings().cluster
    cluster = registry.get(given) if given else lifecycle.up(NAME)
    try:
        archives = [images.archive("tools", places.images()), sandbox_image.archive(places.images())]
        lifecycle.load(cluster, archives, ["sandbox"])
        yield cluster
    finally:
        if not given:
            lifecycle.down(cluster.name)


@pytest.fixture(scope="session")
def apply(cluster: Cluster) -> Apply:
    """`kubectl apply` of some objects."""

    def apply(*objects: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        lifecycle.kubectl(cluster, "apply", "--filename=-", stdin=json.dumps(listed))

    return apply


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[Kube]:
    kube = Kube(login.client(await login.configuration(cluster.kubeconfig())))
    yield kube
    await kube.aclose()


@pytest.fixture(scope="session")
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """Towline, installed by Helm; uninstalled at the end."""
    given = settings()
    if given.kubeconfig is not None:
        kubectl = Kubectl(Path("kubectl"), given.kubeconfig, given.kubeconfig.parent / "kubectl-cache")
        made, values = installing.Installation(kubectl, Path("helm"), None), []
    else:
        cluster = request.getfixturevalue("cluster")
        made, values = installing.on(cluster), [installing.VALUES]
        if not given.as_is:
            installing.load_images(cluster)
    try:
        if not given.as_is:
            made.install(*values, *([given.values] if given.values else []))
            if given.cluster:
                made.restart()  # it may have run something older
        yield made
    except Failed:
        show(made)
        raise
    finally:
        made.tunnel.close()
        if not (given.keep or given.as_is):
            made.uninstall()
            assert made.left() == [], "uninstalled, and not all gone"


@pytest.fixture
def team(installation: Installation) -> Iterator[Team]:
    """A namespace for the test's runs; it goes while the next test is on its way."""
    team = Team(installation, f"e2e-{secrets.token_hex(3)}")
    team.enter()
    yield team
    team.leave()


@pytest.fixture
def towline(installation: Installation, team: Team) -> Towline:
    """The command on the test's namespace."""

    def towline(verb: str, *arguments: str) -> str:
        where = (f"--kubeconfig={installation.kubectl.kubeconfig}", f"--namespace={team.namespace}")
        return run(sys.executable, "-P", "-m", "towline.cli", verb, *where, *arguments)

    return towline


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to a failed test's report what the cluster says."""
    report = yield
    values = getattr(item, "funcargs", {})
    installation = values.get("installation") or getattr(values.get("team"), "installation", None)
    if report.failed and report.when == "call" and installation is not None:
        namespaces = [values["team"].namespace] if "team" in values else []
        report.sections += evidence.of(installation, *namespaces)
    return report


def show(installation: Installation) -> None:
    for title, text in evidence.of(installation):
        print(f"---- {title}\n{text}")
