"""The option that names a kept store, and where it is without it. Shared by the verbs."""

import argparse
from pathlib import Path

from towline.errors import Invalid
from towline.settings import LocalSettings


def add_store_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="DIR",
        type=Path,
        help="folder of the kept runs (default: $XDG_STATE_HOME/towline, that is ~/.local/state/towline)",
    )


def store_path(arguments: argparse.Namespace, settings: LocalSettings) -> Path:
    """The store that is meant, absolute."""
    chosen: Path | None = arguments.store
    return (chosen or at_home(settings.state_home, "XDG_STATE_HOME") / "towline").absolute()


def at_home(folder: Path, variable: str) -> Path:
    """`folder` with its ~ replaced. Raises Invalid for a user without a home folder, as containers have."""
    try:
        return folder.expanduser()
    except RuntimeError as fault:
        raise Invalid(f"this user has no home folder: set HOME or {variable}") from fault
