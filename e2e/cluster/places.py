"""Where the cluster's files lie: all outside the repository, and the only module that reads the environment.

Built things under $XDG_CACHE_HOME/towline/cluster, running clusters under $XDG_STATE_HOME/towline/clusters.
"""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
GO_SOURCES = HERE / "go"
REPOSITORY = HERE.parent.parent


def environment() -> dict[str, str]:
    return dict(os.environ)  # noqa: TID251 - test machinery: the product's settings module is not for it


def cache() -> Path:
    """Built things; may be deleted whenever nothing runs, and is made again."""
    return xdg("XDG_CACHE_HOME", ".cache") / "cluster"


def images() -> Path:
    return xdg("XDG_CACHE_HOME", ".cache") / "images"


def state() -> Path:
    """Running clusters, one folder each."""
    return xdg("XDG_STATE_HOME", ".local/state") / "clusters"


def xdg(variable: str, default: str) -> Path:
    return Path(environment().get(variable) or Path.home() / default) / "towline"
