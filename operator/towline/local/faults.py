"""What can go wrong on a laptop and is not the run's doing: the machine, a store in use, a run that is not there."""

from pathlib import Path

from towline.errors import Invalid, TowlineError


class MachineCannot(TowlineError):
    """This machine lacks something towline needs, or something of ours did not start; the text says what to do."""


class NoSuchRun(Invalid):
    """What was named is no run of this machine: never was, or vanished with the launcher that kept nothing."""


class StoreInUse(TowlineError):
    """Another towline holds the kept store."""

    def __init__(self, folder: Path, verb: str, pid: int) -> None:
        self.folder, self.verb, self.pid = folder, verb, pid
        super().__init__(
            f"the store {folder} is in use by `towline {verb}` (pid {pid}); "
            "wait for it, or take another store with --store DIR"
        )
