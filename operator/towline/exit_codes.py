"""How a harness process ends: the exit codes, and what each asks of whoever started it.

Written by `harness/process.py`, read by the operator's and the launcher's plans. Nothing else passes between the two at
the end of a process; what the run has done stands in its log.
"""

from enum import IntEnum


class HarnessExit(IntEnum):
    """Any other code, or a signal, is a crash."""

    FINISHED = 0
    """The log has its terminal event, from this process or from another."""
    CRASHED = 1
    """A fault of its own, or settings it cannot work with."""
    FENCED = 10
    """A higher epoch owns the run."""
    STOPPED = 11
    """Cancelled or told to terminate; the terminal event, if there is to be one, is the operator's."""
    STORE_AWAY = 12
    """The event store did not answer for 15 s."""
    SEAL_FAILED = 13
    """It could not seal itself, so nothing was read or asked."""
    GATEWAY_AWAY = 14
    """The gateway did not answer for ten minutes."""
    ASLEEP = 15
    """An interactive run waits for a prompt, and none was there at the last look: no harness until there is one."""


NO_CRASH = frozenset(
    {
        HarnessExit.FENCED,
        HarnessExit.STOPPED,
        HarnessExit.STORE_AWAY,
        HarnessExit.GATEWAY_AWAY,
        HarnessExit.ASLEEP,
    }
)
"""Ends that are no fault of the harness: a successor takes over, and no back-off limit counts them."""
