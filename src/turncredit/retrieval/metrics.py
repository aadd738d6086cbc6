"""What a server did so far, as numbers and in Prometheus's text format."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_NAME = "turncredit_retriever_"


@dataclass
class Histogram:
    """Counts of values by size; a value belongs to the first bound that it does not exceed."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(init=False)  # the last is for values above every bound

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """Cumulative buckets, sum and count."""
        found, below = [], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            below += count
            found.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*found, f"{name}_sum {self.total:g}", f"{name}_count {below}"]


@dataclass
class Metrics:
    """Of one server, since it was started."""

    queries: int = 0
    cut: int = 0  # queries longer than the server takes
    refused: int = 0  # requests that found the queue full
    failed: int = 0  # requests whose search raised an error
    waiting: int = 0  # queries in the queue now
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # of a request, its wait included
    batch: Histogram = field(default_factory=lambda: Histogram(QUERIES))  # queries of a search

    def text(self) -> str:
        """Every number, with its type and meaning."""
        counters = {
            "queries_total": (self.queries, "Queries asked."),
            "queries_cut_total": (self.cut, "Queries cut to the words that the server takes."),
            "requests_refused_total": (self.refused, "Requests refused because the queue was full."),
            "requests_failed_total": (self.failed, "Requests whose search failed."),
            "batches_total": (sum(self.batch.counts), "Searches, each of one batch of queries."),
        }
        lines = []
        for name, (value, meaning) in counters.items():
            lines += [f"# HELP {_NAME}{name} {meaning}", f"# TYPE {_NAME}{name} counter", f"{_NAME}{name} {value}"]
        lines += [f"# HELP {_NAME}queue Queries that wait.", f"# TYPE {_NAME}queue gauge",
                  f"{_NAME}queue {self.waiting}"]
        for name, histogram, meaning in (("request_seconds", self.latency, "Time of a request, its wait included."),
                                         ("batch_queries", self.batch, "Queries of a search.")):
            lines += [f"# HELP {_NAME}{name} {meaning}", f"# TYPE {_NAME}{name} histogram",
                      *histogram.lines(_NAME + name)]
        return "\n".join(lines) + "\n"
