"""Gives memory back that a burst left behind: the imports, the first look at everything, a wave of runs.

Called after each of these. Half of what a start needs is needed only then, and an allocator keeps it for ever.
"""

import ctypes
import gc

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's; musl has none and needs none."""


def settle_imports() -> None:
    """What the imports made stays for ever: no collection need look at it again."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """A few milliseconds for a hundred megabytes."""
    if _trim is not None:
        _trim(0)
