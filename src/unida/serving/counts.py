"""What /metrics tells, as Prometheus reads it."""

from collections import Counter
from collections.abc import Mapping

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Counts:
    """Requests by place and status, and how long answers took. Only the event loop writes here."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds = 0.0
        self._timed = 0

    def add(self, place: str, status: int, seconds: float) -> None:
        self._requests[place, status] += 1
        if place == "/predict" and status == 200:
            self._timed += 1
            self._seconds += seconds
            self._within.update(bound for bound in BOUNDS if seconds <= bound)

    def text(self, counters: Mapping[str, int], gauges: Mapping[str, int]) -> str:
        """All of it, with more numbers by name: `counters` only grow, `gauges` go up and down."""
        lines = ["# TYPE unida_requests_total counter"]
        for (place, status), count in sorted(self._requests.items()):
            lines.append(f'unida_requests_total{{path="{place}",status="{status}"}} {count}')
        lines.append("# TYPE unida_predict_seconds histogram")
        lines += [f'unida_predict_seconds_bucket{{le="{bound:g}"}} {self._within[bound]}' for bound in BOUNDS]
        lines.append(f'unida_predict_seconds_bucket{{le="+Inf"}} {self._timed}')
        lines += [f"unida_predict_seconds_sum {self._seconds:.6f}", f"unida_predict_seconds_count {self._timed}"]
        for kind, numbers in (("counter", counters), ("gauge", gauges)):
            for name, value in numbers.items():
                lines += [f"# TYPE unida_{name} {kind}", f"unida_{name} {value}"]
        return "\n".join(lines) + "\n"
