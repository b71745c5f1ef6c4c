"""docs/cli.md says what `--help` says."""

from tests.contracts.write_docs import CLI_PAGE, cli_page


def test_the_page_of_the_command_line_is_its_help() -> None:
    assert CLI_PAGE.read_text(encoding="utf-8") == cli_page(), "run `make docs`"
