"""What a service counts while it runs, and how Prometheus reads it."""

from collections.abc import Callable, Iterable, Mapping
from threading import Lock

BUCKETS_SECONDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)

Labels = tuple[tuple[str, str], ...]


class Counted:
    """Requests by route and status, and how long they took."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, list[int]] = {}
        self._seconds_total: dict[str, float] = {}
        self._elsewhere: list[tuple[str, str, Callable[[], int]]] = []

    def also(self, name: str, about: str, read: Callable[[], int]) -> None:
        """A count that is kept elsewhere."""
        self._elsewhere.append((name, about, read))

    def request(self, method: str, path: str, *, status: int, seconds: float) -> None:
        with self._lock:
            key = (method, path, status)
            self._requests[key] = self._requests.get(key, 0) + 1
            row = self._seconds.setdefault(path, [0] * (len(BUCKETS_SECONDS) + 1))
            for place, bound in enumerate(BUCKETS_SECONDS):
                row[place] += seconds <= bound
            row[-1] += 1
            self._seconds_total[path] = self._seconds_total.get(path, 0.0) + seconds

    def lines(self) -> Iterable[str]:
        with self._lock:
            requests, rows, totals = dict(self._requests), dict(self._seconds), dict(self._seconds_total)
        name = "holdfast_http_requests_total"
        yield from header(name, "counter", "Requests by route and status.")
        for (method, path, status), count in sorted(requests.items()):
            yield sample(name, {"method": method, "path": path, "status": str(status)}, count)
        name = "holdfast_http_request_seconds"
        yield from header(name, "histogram", "How long requests took.")
        for path, row in sorted(rows.items()):
            for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), row, strict=True):
                yield sample(f"{name}_bucket", {"path": path, "le": bound}, count)
            yield sample(f"{name}_sum", {"path": path}, totals[path])
            yield sample(f"{name}_count", {"path": path}, row[-1])
        for counter, about, read in self._elsewhere:
            yield from header(counter, "counter", about)
            yield f"{counter} {read()}"


def header(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{told}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
