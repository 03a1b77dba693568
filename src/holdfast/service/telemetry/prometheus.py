"""Request metrics of the service, in Prometheus text format."""

from collections.abc import Callable, Iterable, Mapping
from threading import Lock

BUCKETS_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
Labels = tuple[tuple[str, str], ...]


class RequestMetrics:
    """Counts requests by route and status, and their duration by route."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, list[int]] = {}
        self._seconds_total: dict[str, float] = {}
        self._external_counters: list[tuple[str, str, str, Callable[[], int]]] = []
        self.labels: Mapping[str, str] = {}
        """Labels of every sample, such as the worker that it is from."""

    def add_counter(self, name: str, help_text: str, read: Callable[[], int], *, kind: str = "counter") -> None:
        """Adds a counter or gauge whose value is kept elsewhere."""
        self._external_counters.append((name, kind, help_text, read))

    def count_request(self, method: str, path: str, *, status: int, seconds: float) -> None:
        with self._lock:
            key = (method, path, status)
            self._requests[key] = self._requests.get(key, 0) + 1
            row = self._seconds.setdefault(path, [0] * (len(BUCKETS_SECONDS) + 1))
            # Prometheus buckets are cumulative: each counts all requests up to its bound.
            for index, bound in enumerate(BUCKETS_SECONDS):
                row[index] += seconds <= bound
            row[-1] += 1
            self._seconds_total[path] = self._seconds_total.get(path, 0.0) + seconds

    def format_lines(self) -> Iterable[str]:
        with self._lock:
            requests, rows, totals = dict(self._requests), dict(self._seconds), dict(self._seconds_total)
        name = "holdfast_http_requests_total"
        yield from format_metric_header(name, "counter", "Requests by route and status.")
        for (method, path, status), count in sorted(requests.items()):
            yield format_sample(name, {"method": method, "path": path, "status": str(status), **self.labels}, count)
        name = "holdfast_http_request_seconds"
        yield from format_metric_header(name, "histogram", "Request duration.")
        for path, row in sorted(rows.items()):
            for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), row, strict=True):
                yield format_sample(f"{name}_bucket", {"path": path, "le": bound, **self.labels}, count)
            yield format_sample(f"{name}_sum", {"path": path, **self.labels}, totals[path])
            yield format_sample(f"{name}_count", {"path": path, **self.labels}, row[-1])
        for counter, kind, help_text, read in self._external_counters:
            yield from format_metric_header(counter, kind, help_text)
            yield format_sample(counter, self.labels, read())


def format_metric_header(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def format_sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def merge_metrics(sources: Iterable[Iterable[str]]) -> Iterable[str]:
    """The metrics of several processes: Prometheus wants all samples of a metric together, after one header."""
    metrics: dict[str, list[str]] = {}
    for lines in sources:
        samples: list[str] = []
        for line in lines:
            if line.startswith("# HELP "):
                samples = metrics.setdefault(line, [])
            elif line not in samples or not line.startswith("#"):
                samples.append(line)
    for header, samples in metrics.items():
        yield header
        yield from samples


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
