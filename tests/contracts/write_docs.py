"""Writes the generated pages anew: `python -m tests.contracts.write_docs`, by `make docs`."""

import argparse
import os
from pathlib import Path

from towline.cli.__main__ import parser

CLI_PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

COLUMNS = "100"

INTRODUCTION = """\
# The command `towline`

Generated from `--help` by `make docs`. What a local run is made of, and what to do when it does not start:
[local mode](local-mode.md).
"""


def cli_page() -> str:
    """docs/cli.md: the help of the command and of each verb, at a fixed width."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        whole = parser()
        helps = [("towline", whole.format_help())]
        for action in whole._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps += [(f"towline {name}", verb.format_help()) for name, verb in action.choices.items()]
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return INTRODUCTION + "".join(f"\n## {name}\n\n```\n{text.rstrip()}\n```\n" for name, text in helps)


if __name__ == "__main__":
    CLI_PAGE.write_text(cli_page(), encoding="utf-8")
