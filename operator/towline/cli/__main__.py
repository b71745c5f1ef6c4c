"""Entry of the `towline` command; each verb has a file of its own beside this one."""


def main() -> int:
    """Run the verb named on the command line; returns the exit code."""
    raise NotImplementedError
