"""What the kernel says of a process and of this machine. Linux only, as towline is."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

_TICKS = os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process in MB (10^6 bytes): VmRSS is now, VmHWM the most it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024 / 1e6
    raise LookupError(f"/proc/{pid}/status has no {field}")


def cpu_seconds(pid: int) -> float:
    """User and system time that a process, with all its threads and without its children, has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far: of the whole machine, and of this process with the children that have ended."""

    at: float
    machine: float
    ours: float

    @classmethod
    def now(cls) -> "Usage":
        user, nice, system, _idle, _wait, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
        taken = sum(map(int, (user, nice, system, irq, softirq, steal))) / _TICKS
        return cls(perf_counter(), taken, sum(os.times()[:4]))

    def others_since(self, earlier: "Usage") -> float:
        """How many cores somebody else kept busy meanwhile; children that still run count as somebody else."""
        ours = self.ours - earlier.ours
        return max(0.0, self.machine - earlier.machine - ours) / (self.at - earlier.at)


def machine() -> str:
    """Where the figures come from, in a few words and without its name."""
    kernel = platform.release().partition("-")[0]
    return f"{platform.machine()}, Linux {kernel}, CPython {platform.python_version()}"
