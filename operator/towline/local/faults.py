"""What can go wrong on a laptop that is neither the user's input nor the run: the machine, or a store in use."""

from pathlib import Path

from towline.errors import TowlineError


class MachineCannot(TowlineError):
    """This machine lacks something towline needs, or something of ours did not start; the text says what to do."""


class StoreInUse(TowlineError):
    """Another towline holds the kept store."""

    def __init__(self, folder: Path, verb: str, pid: int) -> None:
        self.folder, self.verb, self.pid = folder, verb, pid
        super().__init__(
            f"the store {folder} is in use by `towline {verb}` (pid {pid}); "
            "wait for it, or take another store with --store DIR"
        )
