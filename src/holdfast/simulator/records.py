"""A bounded record of the latest requests, byte for byte."""

from collections import deque

import msgspec

from holdfast.canonical.reply import Reply

# Both limits bound the memory of a long-running simulator.
REQUESTS_MAX = 1_000
REQUESTS_BYTES_MAX = 64 * 1024 * 1024


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request as received, without its headers, because they contain the API key.

    `model` (as `provider:name`) and `reply` are set if a model generated the response.
    """

    at: float
    method: str
    path: str
    status: int
    body: bytes
    model: str = ""
    reply: Reply | None = None


class RequestRing:
    """Drops the oldest first; the newest is kept whatever its size."""

    def __init__(self, *, requests_max: int = REQUESTS_MAX, bytes_max: int = REQUESTS_BYTES_MAX) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._requests: deque[RecordedRequest] = deque()

    def add(self, request: RecordedRequest) -> None:
        self._requests.append(request)
        self._bytes += len(request.body)
        while len(self._requests) > 1 and (len(self._requests) > self._requests_max or self._bytes > self._bytes_max):
            self._bytes -= len(self._requests.popleft().body)

    def newest(self) -> tuple[RecordedRequest, ...]:
        """All recorded requests, oldest first."""
        return tuple(self._requests)
