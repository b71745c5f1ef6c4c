"""Counts and times of the operator, in the text form that Prometheus reads. No library: two dozen numbers.

Filled by the workers, read by `health.py`.
"""

from collections import Counter
from collections.abc import Callable

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Gauge = Callable[[], float]


class Metrics:
    def __init__(self) -> None:
        self._reconciles: Counter[str] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._gauges: dict[str, tuple[str, Gauge]] = {}

    def reconciled(self, outcome: str, seconds: float) -> None:
        self._reconciles[outcome] += 1
        self._seconds += seconds
        for bound in BUCKETS:
            if seconds <= bound:
                self._buckets[bound] += 1

    def gauge(self, name: str, meaning: str, value: Gauge) -> None:
        """A number that is read when somebody asks. A name that ends in `_total` only rises."""
        self._gauges[name] = (meaning, value)

    def text(self) -> str:
        """Everything, one line a value."""
        lines = ["# TYPE towline_reconciles_total counter"]
        lines += [f'towline_reconciles_total{{outcome="{each}"}} {n}' for each, n in sorted(self._reconciles.items())]
        lines.append("# TYPE towline_reconcile_seconds histogram")
        lines += [f'towline_reconcile_seconds_bucket{{le="{bound}"}} {self._buckets[bound]}' for bound in BUCKETS]
        total = sum(self._reconciles.values())
        lines.append(f'towline_reconcile_seconds_bucket{{le="+Inf"}} {total}')
        lines += [f"towline_reconcile_seconds_sum {self._seconds:.6f}", f"towline_reconcile_seconds_count {total}"]
        for name, (meaning, value) in self._gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value():g}"]
        return "\n".join(lines) + "\n"
