"""What the library logs, for a person who typed a command: nothing but faults, unless --verbose asks for more.

Called once by `__main__`. Without it Python prints bare messages, amid the run that is shown. The processes of a run
have log files of their own.
"""

import logging
import sys

from towline.cli.sanitize import printable


class ForAPerson(logging.Formatter):
    """`towline: event (field: value, …)`, with the traceback behind it if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = ", ".join(f"{name}: {value}" for name, value in getattr(record, "fields", {}).items())
        said = f"towline: {record.getMessage()}" + (f" ({fields})" if fields else "")
        if record.exc_info:
            said += "\n" + self.formatException(record.exc_info)
        return printable(said)


def configure(*, verbose: bool) -> None:
    """Send the log records of this process that a person should see to stderr.

    A program that has set up its logging, and calls us in the same process, is left alone.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ForAPerson())
    handler.setLevel(logging.WARNING if verbose else logging.ERROR)
    logging.basicConfig(handlers=[handler])
