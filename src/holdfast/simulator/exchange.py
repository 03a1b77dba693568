"""One exchange with a simulated provider: the response, and the bounded record of the latest requests."""

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.types.reply import Reply


class Pause(msgspec.Struct, frozen=True):
    """Send nothing for this long."""

    seconds: float


class ConnectionCut(msgspec.Struct, frozen=True):
    """Close the connection without sending anything."""


Chunk = bytes | Pause | ConnectionCut


class SimulatedResponse(msgspec.Struct, frozen=True):
    """An HTTP response. It begins when its first chunk is read: from then on other requests can read its cache entries.

    `model` (as `provider:name`) and `reply` are set if a model generated the response.
    """

    status: int
    headers: Mapping[str, str]
    chunks: Iterable[Chunk]
    model: str = ""
    reply: Reply | None = None

    def read_body(self) -> bytes:
        """All bytes that are sent, without the pauses."""
        return b"".join(chunk for chunk in self.chunks if isinstance(chunk, bytes))


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

    def list_requests(self) -> tuple[RecordedRequest, ...]:
        """All recorded requests, oldest first."""
        return tuple(self._requests)
