"""Runs the recorder in a separate process, fed through a pipe, so that recording never delays a forwarded call.

Messages that the pipe cannot take yet are queued up to a size limit, then dropped and counted.
"""

import contextlib
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Thread
from typing import IO

import msgspec

from holdfast.events.payloads_gateway import Change
from holdfast.gateway.exchange import Caller, End, Exchange
from holdfast.gateway.letters import Letter
from holdfast.gateway.notes import Notes
from holdfast.gateway.routing import Target

# Recording takes several times the processor time of forwarding, and as a thread it added 3 to 8 ms of processor time
# per stream (docs/decisions/0029); hence a separate process.
CLOSING_SECONDS_MAX = 10.0
REMEMBERED_MAX = 1_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
_SIZE_BYTES = 4

Pairs = list[tuple[bytes, bytes]]


class Setup(msgspec.Struct, frozen=True, tag=True):
    """Configuration of the recorder process: store, whether the provider is simulated, volatile-text rules."""

    db: str | None
    simulated: bool
    volatile: tuple[tuple[str, str], ...] = ()


class Asked(msgspec.Struct, frozen=True, tag=True):
    number: int
    target: Target
    headers: Pairs
    caller: Caller
    at: float
    body: bytes
    original: bytes | None
    changes: tuple[Change, ...]
    waiting: int = 0


class Ended(msgspec.Struct, frozen=True, tag=True):
    number: int
    at: float
    status: int
    headers: Pairs
    end: End
    body: bytes | None


class Pinged(msgspec.Struct, frozen=True, tag=True):
    number: int
    letter: Letter
    answer: bytes
    at: float


class Spent(msgspec.Struct, frozen=True, tag=True):
    """Sent back by the recorder process: the cost of a call made with a gateway key."""

    key_id: str
    at: float
    dollars: float


Told = Setup | Asked | Ended | Pinged | Spent

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Told).decode


def write_frame(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(len(payload).to_bytes(_SIZE_BYTES))
    pipe.write(payload)
    pipe.flush()


def frames(pipe: IO[bytes]) -> Iterator[Told]:
    """Yields messages until the other end closes; a truncated last frame is ignored."""
    while len(size := pipe.read(_SIZE_BYTES)) == _SIZE_BYTES:
        length = int.from_bytes(size)
        payload = pipe.read(length)
        if len(payload) < length:
            return
        yield _decode(payload)


class Relay:
    """A watcher that forwards exchanges to the recorder process. Never raises, never blocks."""

    def __init__(self, arguments: Sequence[str], setup: Setup, *, spent: Callable[[str, float, float], None]) -> None:
        self._process = subprocess.Popen(
            # -P: do not import modules from the working directory. A new session: Ctrl-C must not end the recorder
            # before it has recorded the last exchanges.
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._on_spent = spent
        self._lock = Lock()
        self._last_number = 0
        self._queue: Notes[bytes] = Notes(self._write, bytes_max=WAITING_BYTES_MAX)
        self._reader_thread = Thread(target=self._read_messages, name="holdfast-gateway-reader", daemon=True)
        self._reader_thread.start()
        self._put(setup)

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    def asked(self, exchange: Exchange) -> None:
        body = exchange.request_body
        if exchange.target.speaks is None or body is None:
            return
        with self._lock:
            self._last_number += 1
            exchange.record = self._last_number
        self._put(
            Asked(
                number=self._last_number,
                target=exchange.target,
                headers=exchange.headers,
                caller=exchange.caller,
                at=exchange.asked_at,
                body=body,
                original=exchange.original,
                changes=exchange.changes,
                waiting=self._queue.waiting,
            )
        )
        exchange.request_was_read()

    def ended(self, exchange: Exchange) -> None:
        if isinstance(exchange.record, int):
            headers, body = exchange.reply_headers, exchange.reply_body
            self._put(Ended(exchange.record, exchange.ended_at, exchange.status, headers, exchange.end, body))
            exchange.reply_was_read()

    def pinged(self, exchange: Exchange, letter: Letter, answer: bytes, at: float) -> None:
        if isinstance(exchange.record, int):
            # Without the body, which the recorder does not need and which may have megabytes.
            self._put(Pinged(exchange.record, msgspec.structs.replace(letter, body=b""), answer, at))

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

    def _put(self, message: Told) -> None:
        encoded = _encode(message)
        self._queue.put(encoded, len(encoded))

    def _write(self, encoded: bytes) -> None:
        pipe = self._process.stdin
        try:
            if pipe is not None:
                write_frame(pipe, encoded)
        except (OSError, ValueError):
            self._queue.dropped += 1

    def _read_messages(self) -> None:
        if self._process.stdout is not None:
            for message in frames(self._process.stdout):
                if isinstance(message, Spent):
                    self._on_spent(message.key_id, message.at, message.dollars)


class Retold:
    """Rebuilds exchanges in the recorder process and passes them to its watcher."""

    def __init__(
        self,
        on_request: Callable[[Exchange], None],
        on_end: Callable[[Exchange], None],
        on_ping: Callable[[Exchange, Letter, bytes, float], None],
    ) -> None:
        self._on_request, self._on_end, self._on_ping = on_request, on_end, on_ping
        self._exchanges: OrderedDict[int, Exchange] = OrderedDict()

    def hear(self, message: Told) -> None:
        match message:
            case Asked():
                exchange = Exchange(message.target, message.headers, message.caller, message.at)
                exchange.asked(message.body)
                exchange.original, exchange.changes, exchange.waiting = (
                    message.original,
                    message.changes,
                    message.waiting,
                )
                self._exchanges[message.number] = exchange
                while len(self._exchanges) > REMEMBERED_MAX:
                    self._exchanges.popitem(last=False)
                self._on_request(exchange)
            case Ended():
                ended = self._exchanges.get(message.number)
                if ended is not None:
                    ended.ended_at, ended.status, ended.end = message.at, message.status, message.end
                    ended.reply_headers = message.headers
                    if message.body is not None:
                        ended.answered(message.body)
                    self._on_end(ended)
            case Pinged():
                pinged = self._exchanges.get(message.number)
                if pinged is not None:
                    self._on_ping(pinged, message.letter, message.answer, message.at)
            case Setup() | Spent():
                pass
