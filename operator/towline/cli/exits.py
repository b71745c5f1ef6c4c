"""The exit codes of `towline`; documented in `run --help` and docs/local-mode.md."""

OK = 0
FAILED = 1
USAGE = 2
MACHINE = 3
NO_REPLY = 124
INTERRUPTED = 130
BROKEN_PIPE = 141
