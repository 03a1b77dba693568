"""Runs the recorder in a separate process, fed through a pipe, so that recording never delays a forwarded call.

Messages that the pipe cannot take yet are queued up to a size limit, then dropped and counted.
"""

import contextlib
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from threading import Condition, Event, Lock, Thread, current_thread
from typing import IO, Generic, TypeVar

import msgspec

from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.exchange import (
    UNPRICED_USD_PER_MTOK,
    CallCharge,
    Exchange,
    ExchangeEnd,
    GatewayCaller,
    WebSocketCall,
)
from holdfast.gateway.rewrite.request_analysis import GatewayPing
from holdfast.gateway.routes import Target

# Recording takes several times the processor time of forwarding, and as a thread it added 3 to 8 ms of processor time
# per stream (docs/decisions/0029); hence a separate process.
CLOSING_SECONDS_MAX = 10.0
TRACKED_EXCHANGES_MAX = 1_000
PIPE_QUEUE_BYTES_MAX = 64 * 1024 * 1024
_SIZE_BYTES = 4
HeaderPairs = list[tuple[bytes, bytes]]
_encode = msgspec.msgpack.Encoder().encode

# Both limits are needed: many small records, or few with bodies of megabytes.
QUEUED_RECORDS_MAX = 10_000
QUEUED_BYTES_MAX = 256 * 1024 * 1024
QUEUE_CLOSE_SECONDS_MAX = 5.0
YIELD_SECONDS = 0.05
T = TypeVar("T")


class RecorderSetup(msgspec.Struct, frozen=True, tag=True):
    """Configuration of the recorder process: store, whether the provider is simulated, volatile-text rules."""

    db: str | None
    simulated: bool
    volatile: tuple[tuple[str, str], ...] = ()
    unpriced_usd_per_mtok: float = UNPRICED_USD_PER_MTOK


class RequestMessage(msgspec.Struct, frozen=True, tag=True):
    number: int
    target: Target
    headers: HeaderPairs
    caller: GatewayCaller
    at: float
    body: bytes | None
    size_bytes: int
    original_body: bytes | None
    changes: tuple[RequestChange, ...]
    queue_length: int = 0
    websocket_call: WebSocketCall | None = None
    method: str = "POST"
    id: str = ""
    is_planned: bool = False


class EndMessage(msgspec.Struct, frozen=True, tag=True):
    number: int
    at: float
    status: int
    headers: HeaderPairs
    end: ExchangeEnd
    body: bytes | None
    size_bytes: int


class PingMessage(msgspec.Struct, frozen=True, tag=True):
    number: int
    ping: GatewayPing
    response: bytes
    at: float


class SpendingMessage(msgspec.Struct, frozen=True, tag=True):
    """Sent back by the recorder process: the cost of a call made with a gateway key."""

    charge: CallCharge


RecorderMessage = RecorderSetup | RequestMessage | EndMessage | PingMessage | SpendingMessage
_decode = msgspec.msgpack.Decoder(RecorderMessage).decode


def write_frame(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(len(payload).to_bytes(_SIZE_BYTES))
    pipe.write(payload)
    pipe.flush()


def read_frames(pipe: IO[bytes]) -> Iterator[RecorderMessage]:
    """Yields messages until the other end closes; a truncated last frame is ignored."""
    while len(size := pipe.read(_SIZE_BYTES)) == _SIZE_BYTES:
        length = int.from_bytes(size)
        payload = pipe.read(length)
        if len(payload) < length:
            return
        yield _decode(payload)


class RecorderProcess:
    """A watcher that forwards exchanges to the recorder process. Never raises, never blocks."""

    def __init__(
        self, arguments: Sequence[str], setup: RecorderSetup, *, on_spent: Callable[[CallCharge], None]
    ) -> None:
        self._process = subprocess.Popen(
            # -P: do not import modules from the working directory. A new session: Ctrl-C must not end the recorder
            # before it has recorded the last exchanges.
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._on_spent = on_spent
        self._lock = Lock()
        self._last_number = 0
        self._queue: RecordQueue[bytes] = RecordQueue(self._write, bytes_max=PIPE_QUEUE_BYTES_MAX)
        self._reader_thread = Thread(target=self._read_messages, name="holdfast-gateway-reader", daemon=True)
        self._reader_thread.start()
        self._put(setup)

    @property
    def dropped_count(self) -> int:
        return self._queue.dropped_count

    def on_request(self, exchange: Exchange) -> None:
        if not exchange.is_recorded:
            return
        with self._lock:
            self._last_number += 1
            exchange.record = self._last_number
        self._put(
            RequestMessage(
                number=self._last_number,
                id=exchange.id,
                target=exchange.target,
                headers=exchange.headers,
                caller=exchange.caller,
                at=exchange.started_at,
                body=exchange.request_body,
                size_bytes=exchange.request_bytes,
                original_body=exchange.original_body,
                changes=exchange.changes,
                queue_length=self._queue.queue_length,
                websocket_call=exchange.websocket_call,
                method=exchange.method,
                is_planned=exchange.is_planned,
            )
        )
        exchange.free_request()

    def on_end(self, exchange: Exchange) -> None:
        if isinstance(exchange.record, int):
            self._put(
                EndMessage(
                    number=exchange.record,
                    at=exchange.ended_at,
                    status=exchange.status,
                    headers=exchange.response_headers,
                    end=exchange.end,
                    body=exchange.response_body,
                    size_bytes=exchange.response_bytes,
                )
            )
            exchange.free_response()

    def on_ping(self, exchange: Exchange, ping: GatewayPing, response: bytes, at: float) -> None:
        if isinstance(exchange.record, int):
            # Without the parts that the recorder does not need and that may have megabytes.
            self._put(PingMessage(exchange.record, msgspec.structs.replace(ping, body=b"", reply=()), response, at))

    def close(self) -> None:
        """Waits for queued exchanges to be recorded, for up to CLOSING_SECONDS_MAX."""
        self._queue.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSING_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader_thread.join(1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _put(self, message: RecorderMessage) -> None:
        encoded = _encode(message)
        self._queue.put(encoded, len(encoded))

    def _write(self, encoded: bytes) -> None:
        pipe = self._process.stdin
        try:
            if pipe is not None:
                write_frame(pipe, encoded)
        except (OSError, ValueError):
            self._queue.dropped_count += 1

    def _read_messages(self) -> None:
        if self._process.stdout is not None:
            for message in read_frames(self._process.stdout):
                if isinstance(message, SpendingMessage):
                    self._on_spent(message.charge)


class MessageReceiver:
    """Rebuilds exchanges in the recorder process and passes them to its watcher."""

    def __init__(
        self,
        on_request: Callable[[Exchange], None],
        on_end: Callable[[Exchange], None],
        on_ping: Callable[[Exchange, GatewayPing, bytes, float], None],
    ) -> None:
        self._on_request, self._on_end, self._on_ping = on_request, on_end, on_ping
        self._exchanges: OrderedDict[int, Exchange] = OrderedDict()

    def handle_message(self, message: RecorderMessage) -> None:
        match message:
            case RequestMessage():
                exchange = Exchange(
                    message.target, message.headers, message.caller, message.at, method=message.method, id=message.id
                )
                exchange.restore_request(message.body, message.size_bytes)
                exchange.original_body, exchange.changes, exchange.queue_length = (
                    message.original_body,
                    message.changes,
                    message.queue_length,
                )
                exchange.websocket_call, exchange.is_planned = message.websocket_call, message.is_planned
                self._exchanges[message.number] = exchange
                while len(self._exchanges) > TRACKED_EXCHANGES_MAX:
                    self._exchanges.popitem(last=False)
                self._on_request(exchange)
            case EndMessage():
                ended = self._exchanges.get(message.number)
                if ended is not None:
                    ended.ended_at, ended.status, ended.end = message.at, message.status, message.end
                    ended.response_headers = message.headers
                    ended.restore_response(message.body, message.size_bytes)
                    self._on_end(ended)
            case PingMessage():
                pinged = self._exchanges.get(message.number)
                if pinged is not None:
                    self._on_ping(pinged, message.ping, message.response, message.at)
            case RecorderSetup() | SpendingMessage():
                pass


class RecordQueue(Generic[T]):
    """One thread works on the items in order. Items that do not fit are dropped and counted."""

    def __init__(
        self, work: Callable[[T], None], *, records_max: int = QUEUED_RECORDS_MAX, bytes_max: int = QUEUED_BYTES_MAX
    ) -> None:
        self._work = work
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._pending: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = Condition()
        self._closed = False
        self._closing = Event()
        self._busy = False
        self._thread: Thread | None = None
        self.dropped_count = 0

    @property
    def queue_length(self) -> int:
        return len(self._pending)

    @property
    def is_current_thread(self) -> bool:
        return self._thread is current_thread()

    def put(self, record: T, size_bytes: int) -> bool:
        """Returns whether the item was accepted."""
        with self._changed:
            full = len(self._pending) >= self._records_max or self._bytes + size_bytes > self._bytes_max
            if full or self._closed:
                self.dropped_count += 1
                return False
            self._pending.append((record, size_bytes))
            self._bytes += size_bytes
            if self._thread is None:
                self._thread = Thread(target=self._run, name="holdfast-gateway-record", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def wait_until_empty(self, seconds_max: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._busy, seconds_max)

    def close(self) -> None:
        """Waits for the queued items to be worked on, for up to CLOSING_SECONDS_MAX."""
        with self._changed:
            self._closed = True
            self._closing.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(QUEUE_CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        while self._has_work():
            # An item arrives when its request goes out. Yield the processor to the call until its response begins.
            self._closing.wait(YIELD_SECONDS)
            while (record := self._next()) is not None:
                self._work(record)

    def _has_work(self) -> bool:
        """Waits for an item; false if the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            return bool(self._pending)

    def _next(self) -> T | None:
        with self._changed:
            self._busy = bool(self._pending)
            if not self._busy:
                self._changed.notify_all()
                return None
            record, size_bytes = self._pending.popleft()
            self._bytes -= size_bytes
            return record


class SynchronousQueue(RecordQueue[T]):
    """Works on each item synchronously, for callers that have nothing else to do."""

    def put(self, record: T, size_bytes: int) -> bool:
        self._work(record)
        return True
