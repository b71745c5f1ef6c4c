"""Processes that a test starts: none outlives it, however it ends."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_the_test() -> None:
    """A `preexec_fn`: the kernel kills the program when the thread that started it ends.

    For what does not hear of Ctrl-C by itself, having a process group of its own, and for a worker of pytest-xdist that
    was killed before it came to the ends of its fixtures.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
