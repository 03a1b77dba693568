"""Runs the recorder in a separate process, fed through a spool on disk, so that recording never delays or loses a call.

The process is supervised: when it ends, another one continues with the first exchange that is not recorded.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from threading import Condition, Event, Lock, Thread, current_thread
from typing import IO, Generic, TypeVar

import msgspec

from holdfast.events.payloads.cache import ExplicitCacheChanged
from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.exchange import UNPRICED_USD_PER_MTOK, Exchange, ExchangeEnd, GatewayCaller, WebSocketCall
from holdfast.gateway.recording.spool import SpoolWriter
from holdfast.gateway.rewrite.request_analysis import GatewayPing
from holdfast.gateway.routes import Target

# Recording takes several times the processor time of forwarding, and as a thread it added 3 to 8 ms of processor time
# per stream (docs/decisions/0029); hence a separate process.
CLOSING_SECONDS_MAX = 10.0
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.05, 5.0
"""How long to wait before a recorder that ended is started again; doubled while it ends again at once."""

STABLE_SECONDS = 10.0
"""A recorder that ran for this long did not fail at once."""

_SIZE_BYTES = 4
CONTROL_BYTES_MAX = 1024 * 1024
"""Of a message on the pipes. A larger size is none: the process has written something else there."""

HeaderPairs = list[tuple[bytes, bytes]]
_encode = msgspec.msgpack.Encoder().encode

# Both limits are needed: many small records, or few with bodies of megabytes.
QUEUED_RECORDS_MAX = 10_000
QUEUED_BYTES_MAX = 256 * 1024 * 1024
QUEUE_CLOSE_SECONDS_MAX = 5.0
YIELD_SECONDS = 0.05
T = TypeVar("T")


class RecorderSetup(msgspec.Struct, frozen=True, tag=True):
    """Configuration of the recorder process: store, spool, whether the provider is simulated, volatile-text rules.

    `failed_starts` counts the recorders that ended while they read the spool and before they recorded anything, one
    after the other; the first of them may have ended at any time.
    """

    db: str | None
    simulated: bool
    volatile: tuple[tuple[str, str], ...] = ()
    unpriced_usd_per_mtok: float = UNPRICED_USD_PER_MTOK
    spool: str = ""
    failed_starts: int = 0
    memory_mb: int = 256


class RequestMessage(msgspec.Struct, frozen=True, tag=True):
    id: str
    target: Target
    headers: HeaderPairs
    caller: GatewayCaller
    at: float
    body: bytes | None
    size_bytes: int
    original_body: bytes | None
    changes: tuple[RequestChange, ...]
    websocket_call: WebSocketCall | None = None
    method: str = "POST"
    is_planned: bool = False
    explicit_cache_tokens: int = 0
    cache_changes: tuple[ExplicitCacheChanged, ...] = ()


class EndMessage(msgspec.Struct, frozen=True, tag=True):
    id: str
    at: float
    status: int
    headers: HeaderPairs
    end: ExchangeEnd
    body: bytes | None
    size_bytes: int
    cache_changes: tuple[ExplicitCacheChanged, ...] = ()
    first_byte_at: float | None = None


class PingMessage(msgspec.Struct, frozen=True, tag=True):
    """A ping that repeated the exchange `id`, which an earlier recorder may have recorded."""

    id: str
    target: Target
    caller: GatewayCaller
    ping: GatewayPing
    response: bytes
    at: float


SpoolMessage = RequestMessage | EndMessage | PingMessage


class StatusMessage(msgspec.Struct, frozen=True, tag=True):
    """Sent back by the recorder process: why nothing is recorded at the moment, or "" if everything is.

    `recorded` and `lost` count exchanges since this process started; `backlog_bytes` were not read yet.
    """

    error: str = ""
    recorded: int = 0
    lost: int = 0
    backlog_bytes: int = 0
    is_reading: bool = False


ControlMessage = RecorderSetup | StatusMessage
_decode_control = msgspec.msgpack.Decoder(ControlMessage).decode
decode_spool_message = msgspec.msgpack.Decoder(SpoolMessage).decode


def write_frame(pipe: IO[bytes], message: ControlMessage) -> None:
    payload = _encode(message)
    pipe.write(len(payload).to_bytes(_SIZE_BYTES) + payload)
    pipe.flush()


def read_frames(pipe: IO[bytes]) -> Iterator[ControlMessage]:
    """Yields messages until the other end closes; a truncated last frame is ignored. Raises MsgspecError for others."""
    while len(size := pipe.read(_SIZE_BYTES)) == _SIZE_BYTES:
        length = int.from_bytes(size)
        if length > CONTROL_BYTES_MAX:
            raise msgspec.DecodeError(f"a message has {length} bytes")
        payload = pipe.read(length)
        if len(payload) < length:
            return
        yield _decode_control(payload)


def read_setup(pipe: IO[bytes]) -> RecorderSetup | None:
    """The first message of a gateway; None if it closed the pipe."""
    message = next(read_frames(pipe), None)
    return message if isinstance(message, RecorderSetup) else None


class RecorderProcess:
    """A watcher that writes exchanges to the spool of the recorder process, and keeps one such process running.

    Never raises, never blocks. Exchanges that cannot be written to the disk are lost and counted.
    """

    def __init__(self, arguments: Sequence[str], setup: RecorderSetup, spool: Path) -> None:
        self._arguments = arguments
        self._setup = msgspec.structs.replace(setup, spool=str(spool))
        self._status, self._earlier_losses = StatusMessage(), 0
        self._unwritten_count = 0
        self._failed_starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closing = Lock(), Event()
        self.restarts = 0
        self._spool = SpoolWriter(spool, on_written=self._wake)
        self._supervisor = Thread(target=self._supervise, name="holdfast-recorder-supervisor", daemon=True)
        self._supervisor.start()

    @property
    def lost_count(self) -> int:
        """Exchanges that were forwarded and will never be recorded."""
        return self._unwritten_count + self._earlier_losses + self._status.lost

    @property
    def backlog_bytes(self) -> int:
        return self._status.backlog_bytes

    @property
    def error(self) -> str:
        """Why exchanges are not recorded at the moment; empty if they are."""
        return f"the spool cannot be written: {self._spool.error}" if self._spool.error else self._status.error

    def on_request(self, exchange: Exchange) -> None:
        if not exchange.is_recorded:
            return
        message = RequestMessage(
            id=exchange.id,
            target=exchange.target,
            headers=exchange.headers,
            caller=exchange.caller,
            at=exchange.started_at,
            body=exchange.request_body,
            size_bytes=exchange.request_bytes,
            original_body=exchange.original_body,
            changes=exchange.changes,
            websocket_call=exchange.websocket_call,
            method=exchange.method,
            is_planned=exchange.is_planned,
            explicit_cache_tokens=exchange.explicit_cache_tokens,
            cache_changes=exchange.opening_changes,
        )
        if self._append(message):
            exchange.record = exchange.id
        exchange.free_request()

    def on_end(self, exchange: Exchange) -> Awaitable[None] | None:
        if exchange.record is None:
            return None
        message = EndMessage(
            id=exchange.id,
            at=exchange.ended_at,
            status=exchange.status,
            headers=exchange.response_headers,
            end=exchange.end,
            body=exchange.response_body,
            size_bytes=exchange.response_bytes,
            cache_changes=exchange.closing_changes,
            first_byte_at=exchange.first_byte_at,
        )
        is_appended = self._spool.append(_encode(message))
        if not is_appended:
            # A call that never ends would keep all that follows it in the spool; its body is what takes the room.
            message = msgspec.structs.replace(message, body=None)
            self._append(message, may_use_reserve=True)
        if not is_appended or exchange.end != "whole":
            exchange.free_response()
            return None
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        durable.add_done_callback(lambda _: exchange.free_response())

        def resolve() -> None:
            # The loop may be closed already.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: None if durable.done() else durable.set_result(None))

        self._spool.call_when_durable(resolve)
        return durable

    def on_ping(self, exchange: Exchange, ping: GatewayPing, response: bytes, at: float) -> None:
        if exchange.record is not None:
            # Without the parts that the recorder does not need and that may have megabytes.
            ping = msgspec.structs.replace(ping, body=b"", reply=())
            self._append(PingMessage(exchange.id, exchange.target, exchange.caller, ping, response, at))

    def close(self) -> None:
        """Waits up to CLOSING_SECONDS_MAX for spooled exchanges to be recorded; the next start records the rest."""
        self._spool.close()
        with self._lock:
            self._closing.set()
            process = self._process
            if process is not None and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if process is not None:
            try:
                process.wait(CLOSING_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
        self._supervisor.join()

    def _append(self, message: SpoolMessage, *, may_use_reserve: bool = False) -> bool:
        if self._spool.append(_encode(message), may_use_reserve=may_use_reserve):
            return True
        self._unwritten_count += 1
        return False

    def _wake(self) -> None:
        """The recorder waits for input; what it is does not matter, nor whether the pipe is full of it."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._process is not None and self._process.stdin is not None:
                os.write(self._process.stdin.fileno(), b".")

    def _supervise(self) -> None:
        pause = RESTART_SECONDS_MIN
        while True:
            try:
                process = self._start()
            except OSError as error:
                # As when processes or descriptors have run out, which passes.
                self._status = StatusMessage(f"the recorder cannot be started: {error.strerror}")
                self._closing.wait(pause)
                pause = min(2 * pause, RESTART_SECONDS_MAX)
                continue
            if process is None:
                return
            started = time.monotonic()
            self._read_messages(process)
            process.wait()
            with self._lock:
                self._process = None
                if process.stdin is not None:
                    with contextlib.suppress(OSError):
                        process.stdin.close()
            recorded, is_reading = self._status.recorded, self._status.is_reading
            self._earlier_losses += self._status.lost
            self._status = StatusMessage("the recorder ended and is started again")
            if self._closing.is_set():
                return
            is_stable = bool(recorded) or time.monotonic() - started > STABLE_SECONDS
            if is_stable:
                self._failed_starts = 0
            elif is_reading or not self._failed_starts:
                # One that was ended as it started says nothing about the exchange that it would have read.
                self._failed_starts += 1
            pause = RESTART_SECONDS_MIN if is_stable else min(2 * pause, RESTART_SECONDS_MAX)
            self.restarts += 1
            self._closing.wait(pause)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        """None if the gateway is closing."""
        with self._lock:
            if self._closing.is_set():
                return None
            self._process = subprocess.Popen(
                # -P: do not import modules from the working directory. A new session: Ctrl-C must not end the recorder
                # before it has recorded the last exchanges.
                [sys.executable, "-P", "-m", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                setup = msgspec.structs.replace(self._setup, failed_starts=self._failed_starts)
                write_frame(self._process.stdin, setup)
            os.set_blocking(self._process.stdin.fileno(), False)
            return self._process

    def _read_messages(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout:
            try:
                for message in read_frames(process.stdout):
                    if isinstance(message, StatusMessage):
                        self._status = message
            except msgspec.MsgspecError:
                # Nobody would know how it is any more; another one continues where the log ends.
                process.kill()


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
